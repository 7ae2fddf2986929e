"""The operations that layers are made of, each with its gradient.

Each function records one operation of the forward pass on a tape and says what its
gradient reads: that is what the framework keeps for the backward pass.
"""

import math
from collections.abc import Sequence
from typing import Any

from kerasmem.memory.estimate.analytic.tape import Tape, Tensors
from kerasmem.memory.program import ProgramTensor, Shape


def pointwise(
    t: Tape,
    name: str,
    *xs: ProgramTensor,
    needs: Sequence[Tensors | None],
    needs_output: bool = False,
    free: bool = False,
    fusible: bool = True,
) -> ProgramTensor:
    """Return the result of an operation that works entry by entry, with broadcasting.

    Args:
        t: the tape.
        name: what it does.
        *xs: its operands.
        needs: for each operand the tensors that its gradient reads beside that of the
            output, or None if the gradient is that of the output itself.
        needs_output: whether every gradient reads the output too.
        free: whether the result may not be written over an operand.
        fusible: whether a compiler computes it where it is read.
    """
    shape = broadcast(*(x.shape for x in xs))
    largest = max(xs, key=lambda x: x.nbytes)
    y = t.new(shape, xs[0].width, layout=largest.layout)
    t.op(name, xs, y, over=() if free else xs, fusible=fusible)
    saved_output = (y,) if needs_output else ()

    def gradient(
        dy: ProgramTensor, x: ProgramTensor, read: Tensors | None
    ) -> ProgramTensor | None:
        if not x.differentiable:
            return None
        dx = dy
        if read is not None:
            reads = (dy, *read, *saved_output)
            dx = t.new(broadcast(*(r.shape for r in reads)), dy.width, layout=dy.layout)
            t.op(f"{name} gradient", reads, dx, over=reads, fusible=True)
        if math.prod(dx.shape) != math.prod(x.shape):
            dx = reduce(t, dx, x.shape)
        return cast(t, dx, x.width)

    pairs = list(zip(xs, needs, strict=True))
    t.pull(xs, y, lambda dy: [gradient(dy, x, read) for x, read in pairs])
    return y


def broadcast(*shapes: Shape) -> Shape:
    """Return the shape that the shapes broadcast to."""
    rank = max(map(len, shapes))
    full_shapes = [(1,) * (rank - len(shape)) + tuple(shape) for shape in shapes]
    return tuple(max(sizes) for sizes in zip(*full_shapes, strict=True))


def cast(t: Tape, x: ProgramTensor, width: int) -> ProgramTensor:
    """Return `x` in another type, itself if it has it; its gradient converts back."""
    if x.width == width:
        return x
    y = t.new(x.shape, width, layout=x.layout)
    t.op("cast", (x,), y, fusible=True)
    t.pull((x,), y, lambda dy: [cast(t, dy, x.width)])
    return y


def reduce(
    t: Tape, x: ProgramTensor, shape: Sequence[int], name: str = "sum"
) -> ProgramTensor:
    """Return a sum or mean; its gradient is spread over the shape of `x` again."""
    y = t.new(shape, x.width)
    t.op(name, (x,), y, reduces=True)
    t.pull((x,), y, lambda dy: [broadcast_to(t, dy, x)])
    return y


def broadcast_to(t: Tape, x: ProgramTensor, like: ProgramTensor) -> ProgramTensor:
    """Return `x` repeated to the shape of `like`, in memory of its own."""
    y = t.new(like.shape, like.width, layout=like.layout)
    t.op("spread", (x,), y, fusible=True)
    t.pull((x,), y, lambda dy: [reduce(t, dy, x.shape)])
    return y


def copy(
    t: Tape,
    x: ProgramTensor,
    shape: Sequence[int],
    name: str,
    layout: str | None = None,
) -> ProgramTensor:
    """Return entries of `x` in memory of their own, in another order or number."""
    y = t.new(shape, x.width, layout=layout or x.layout)
    return single(t, name, (x,), y, fusible=True)


def single(
    t: Tape,
    name: str,
    xs: Tensors,
    *outputs: ProgramTensor,
    keeps: Tensors = (),
    constants: Tensors = (),
    space: int = 0,
    **traits: Any,
) -> ProgramTensor:
    """Return the result of an operation whose gradients one other operation makes.

    Args:
        t: the tape.
        name: what it does.
        xs: operands that have gradients.
        *outputs: the result; after it what else it writes.
        keeps: what the gradient reads beside that of the result.
        constants: operands without a gradient.
        space: bytes of scratch space of the gradient.
        **traits: more fields of `Op`; of the gradient too, if it is fusible.
    """
    t.op(name, (*xs, *constants), *outputs, **traits)
    fusible = bool(traits.get("fusible"))

    def pullback(dy: ProgramTensor) -> list[ProgramTensor | None]:
        dxs = [gradient_of(t, x) for x in xs]
        writes, reads = [dx for dx in dxs if dx is not None], (dy, *keeps)
        t.op(f"{name} gradient", reads, *writes, workspace=space, fusible=fusible)
        return dxs

    t.pull(xs, outputs[0], pullback)
    return outputs[0]


def gradient_of(t: Tape, x: ProgramTensor) -> ProgramTensor | None:
    """Return a new tensor for the gradient of `x`, None if nothing needs it."""
    return t.new(x.shape, x.width, layout=x.layout) if x.differentiable else None


def product(
    t: Tape,
    name: str,
    x: ProgramTensor,
    w: ProgramTensor,
    shape: Sequence[int],
    workspace: int = 0,
) -> ProgramTensor:
    """Return a matrix product or its like, which keeps both of its operands."""
    y = t.new(shape, x.width)
    t.op(name, (x, w), y, workspace=workspace)

    def gradient(
        dy: ProgramTensor, other: ProgramTensor, of: ProgramTensor
    ) -> ProgramTensor | None:
        dx = t.new(of.shape, of.width) if of.differentiable else None
        if dx is not None:
            t.op(f"{name} gradient", (dy, other), dx, workspace=workspace)
        return dx

    t.pull((x, w), y, lambda dy: [gradient(dy, w, x), gradient(dy, x, w)])
    return y


def product_of_codes(
    t: Tape, x: ProgramTensor, kernel: Shape, shape: Sequence[int]
) -> ProgramTensor:
    """Return a product with floats of codes, which are made again for the gradient.

    Args:
        t: the tape.
        x: what is multiplied.
        kernel: shape of the floats.
        shape: that of the product.
    """
    early = [t.new(kernel, x.width) for _ in "fb"] if t.how.keeps_floats else []
    if early:
        t.op("dequantize", (), *early)

    def multiplied(name: str, x: ProgramTensor, shape: Sequence[int]) -> ProgramTensor:
        floats, y = early or [t.new(kernel, x.width)], t.new(shape, x.width)
        if not early:
            t.op("dequantize", (x,), *floats)
        t.op(name, (x, *floats), y)
        return y

    y = multiplied("matmul", x, shape)
    t.pull((x,), y, lambda dy: [multiplied("matmul gradient", dy, x.shape)])
    return y


def concatenate(t: Tape, xs: Tensors, shape: Sequence[int]) -> ProgramTensor:
    """Return the concatenation of tensors; its gradient is cut into copies."""
    y = t.new(shape, xs[0].width, layout=xs[0].layout)
    t.op("concatenate", xs, y, fusible=True)

    def cut(dy: ProgramTensor, x: ProgramTensor) -> ProgramTensor | None:
        piece = gradient_of(t, x)
        if piece is not None:
            t.op("slice", (dy,), piece, fusible=True)
        return piece

    t.pull(xs, y, lambda dy: [cut(dy, x) for x in xs])
    return y


def add(t: Tape, a: ProgramTensor, b: ProgramTensor) -> ProgramTensor:
    """Return `a + b`; nothing is kept."""
    return pointwise(t, "add", a, b, needs=(None, None))


def multiply(t: Tape, a: ProgramTensor, b: ProgramTensor) -> ProgramTensor:
    """Return `a * b`; each operand is kept for the gradient of the other."""
    needs_a = (b,) if a.differentiable else ()
    needs_b = (a,) if b.differentiable else ()
    return pointwise(t, "multiply", a, b, needs=(needs_a, needs_b))


def scale(t: Tape, x: ProgramTensor) -> ProgramTensor:
    """Return `x` times or plus a number; nothing is kept."""
    return pointwise(t, "scale", x, needs=((),))


def of_input(t: Tape, name: str, x: ProgramTensor) -> ProgramTensor:
    """Return a function of `x` entry by entry whose gradient reads `x`."""
    return pointwise(t, name, x, needs=((x,),))


def of_output(t: Tape, name: str, x: ProgramTensor) -> ProgramTensor:
    """Return a function of `x` entry by entry whose gradient reads the result."""
    return pointwise(t, name, x, needs=((),), needs_output=True)


def softmax(t: Tape, x: ProgramTensor, keeps: Tensors = ()) -> ProgramTensor:
    """Return the softmax as XLA has it: one kernel, with the result beside the scores.

    Args:
        t: the tape.
        x: the scores.
        keeps: what the gradient reads beside the result.
    """
    y = t.new(x.shape, x.width, layout=x.layout)
    t.op("softmax", (x,), y, reduces=True)

    def pullback(dy: ProgramTensor) -> list[ProgramTensor | None]:
        dx, reads = t.new(x.shape, x.width, layout=dy.layout), (dy, *keeps, y)
        t.op("softmax gradient", reads, dx, over=reads, fusible=True)
        return [dx]

    t.pull((x,), y, pullback)
    return y
