"""Operations of layers with their gradients.

Each function records one operation of the forward pass on a tape, and the tensors that
its gradient reads. The framework saves these tensors for the backward pass.
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
    """Record an element-wise operation with broadcasting.

    Args:
        t: The tape.
        name: Name of the operation.
        *xs: Operands.
        needs: For each operand, the additional tensors that its gradient reads. `None`
            if the gradient equals the output gradient.
        needs_output: Whether every gradient also reads the output.
        free: Whether the output must not overwrite an operand.
        fusible: Whether a compiler fuses the operation into its consumers.
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
    """Return the broadcast shape."""
    rank = max(map(len, shapes))
    full_shapes = [(1,) * (rank - len(shape)) + tuple(shape) for shape in shapes]
    return tuple(max(sizes) for sizes in zip(*full_shapes, strict=True))


def cast(t: Tape, x: ProgramTensor, width: int) -> ProgramTensor:
    """Convert `x` to another width if necessary. The gradient is converted back."""
    if x.width == width:
        return x
    y = t.new(x.shape, width, layout=x.layout)
    t.op("cast", (x,), y, fusible=True)
    t.pull((x,), y, lambda dy: [cast(t, dy, x.width)])
    return y


def reduce(
    t: Tape, x: ProgramTensor, shape: Sequence[int], name: str = "sum"
) -> ProgramTensor:
    """Record a sum or mean. The gradient is broadcast to the shape of `x`."""
    y = t.new(shape, x.width)
    t.op(name, (x,), y, reduces=True)
    t.pull((x,), y, lambda dy: [broadcast_to(t, dy, x)])
    return y


def broadcast_to(t: Tape, x: ProgramTensor, like: ProgramTensor) -> ProgramTensor:
    """Repeat `x` to the shape of `like` in new memory."""
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
    """Copy entries of `x` to new memory, in another order or number."""
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
    """Record an operation whose gradients are computed by one other operation.

    Args:
        t: The tape.
        name: Name of the operation.
        xs: Operands with gradients.
        *outputs: The result, followed by other outputs.
        keeps: Additional tensors that the gradient reads.
        constants: Operands without a gradient.
        space: Bytes of scratch space of the gradient.
        **traits: Other fields of `Op`. `fusible` also applies to the gradient.
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
    """Create a tensor for the gradient of `x`, or return `None` if not needed."""
    return t.new(x.shape, x.width, layout=x.layout) if x.differentiable else None


def product(
    t: Tape,
    name: str,
    x: ProgramTensor,
    w: ProgramTensor,
    shape: Sequence[int],
    workspace: int = 0,
) -> ProgramTensor:
    """Record a matrix product or similar, which saves both operands."""
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
    """Record a product with a dequantized kernel, which the gradient recomputes."""
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
    """Record a concatenation. Its gradient is sliced into copies."""
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
    """Record `a + b`. Nothing is saved."""
    return pointwise(t, "add", a, b, needs=(None, None))


def multiply(t: Tape, a: ProgramTensor, b: ProgramTensor) -> ProgramTensor:
    """Record `a * b`. Each operand is saved for the gradient of the other."""
    needs_a = (b,) if a.differentiable else ()
    needs_b = (a,) if b.differentiable else ()
    return pointwise(t, "multiply", a, b, needs=(needs_a, needs_b))


def scale(t: Tape, x: ProgramTensor) -> ProgramTensor:
    """Record a multiplication by, or addition of, a number. Nothing is saved."""
    return pointwise(t, "scale", x, needs=((),))


def of_input(t: Tape, name: str, x: ProgramTensor) -> ProgramTensor:
    """Record an element-wise function whose gradient reads the input."""
    return pointwise(t, name, x, needs=((x,),))


def of_output(t: Tape, name: str, x: ProgramTensor) -> ProgramTensor:
    """Record an element-wise function whose gradient reads the output."""
    return pointwise(t, name, x, needs=((),), needs_output=True)


def softmax(t: Tape, x: ProgramTensor) -> ProgramTensor:
    """Record XLA's softmax: two reductions per row, and a fusible quotient.

    The gradient computes the quotient again from the scores if it is not stored.
    """
    row = (*x.shape[:-1], 1)
    largest, total = t.new(row, x.width), t.new(row, x.width)
    y = t.new(x.shape, x.width, layout=x.layout)
    t.op("max", (x,), largest, reduces=True)
    t.op("sum", (x, largest), total, reduces=True)
    t.op("softmax", (x, largest, total), y, fusible=True)
    residuals = (x, largest, total) if t.how.keeps_scores else (y,)

    def pullback(dy: ProgramTensor) -> list[ProgramTensor | None]:
        dx, reads = t.new(x.shape, x.width, layout=dy.layout), (dy, *residuals)
        t.op("softmax gradient", reads, dx, over=reads, fusible=True)
        return [dx]

    t.pull((x,), y, pullback)
    return y
