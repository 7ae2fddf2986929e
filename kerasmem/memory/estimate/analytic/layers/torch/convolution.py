"""Convolutions and pooling in torch: Keras turns the channels to and fro."""

from kerasmem.memory.estimate.analytic import primitives as p
from kerasmem.memory.estimate.analytic.layers.parts import separable_middle
from kerasmem.memory.estimate.analytic.layers.torch.activations import activated
from kerasmem.memory.estimate.analytic.site import Site
from kerasmem.memory.estimate.analytic.tape import Tape
from kerasmem.memory.program import Shape, Tensor

_INDEX = 8  # bytes of an int64


def convolved(t: Tape, s: Site, xs: list[Tensor]) -> Tensor:
    """Convolutions and depthwise ones."""
    return _finished(t, s, _convolution(t, s, xs[0], s.parameter(s.layer.kernel)))


def convolved_separably(t: Tape, s: Site, xs: list[Tensor]) -> Tensor:
    """SeparableConv: a depthwise convolution, then one over channels."""
    depthwise = s.parameter(s.layer.depthwise_kernel)
    pointwise = s.parameter(s.layer.pointwise_kernel)
    middle = separable_middle(s, pointwise)
    y = _convolution(t, s, xs[0], depthwise, middle)
    y = y if s.channels_first else _last(t, y)
    return _finished(t, s, _kernel_call(t, y, pointwise, s.shape))


def convolved_transposed(t: Tape, s: Site, xs: list[Tensor]) -> Tensor:
    """Transposed convolutions: channels first inside."""
    x = xs[0] if s.channels_first else _first(t, xs[0])
    y = _kernel_call(t, x, s.parameter(s.layer.kernel), s.shape)
    y.layout = "first"
    return _finished(t, s, y)


def _convolution(
    t: Tape, s: Site, x: Tensor, kernel: Tensor, shape: Shape | None = None
) -> Tensor:
    """Return a convolution of copies of its operands, which it keeps."""
    if not s.channels_first:
        x = _last(t, x)
        kernel = p.copied(t, kernel, kernel.shape, "contiguous")
    padded = _padded(s, x)
    if padded is not None:
        x = p.copied(t, x, padded, "pad")
    return _kernel_call(t, x, kernel, s.shape if shape is None else shape)


def _kernel_call(t: Tape, x: Tensor, kernel: Tensor, shape: Shape) -> Tensor:
    y = t.new(shape, x.width)
    t.op("convolution", (x, kernel), y)

    def pullback(dy: Tensor) -> list[Tensor | None]:
        dk = t.new(kernel.shape, kernel.width)
        dx = t.new(x.shape, x.width) if x.differentiable else None
        made = [dk] if dx is None else [dx, dk]
        t.op("convolution gradient", (dy, x, kernel), *made)
        return [dx, dk]

    t.pull((x, kernel), y, pullback)
    return y


def _last(t: Tape, x: Tensor) -> Tensor:
    """Return `x` turned as Keras hands it to a convolution.

    It is copied to channels first, then back to channels last, which cuDNN wants.
    """
    if all(n == 1 for n in x.shape[1:-1]):
        return x
    return p.copied(t, _first(t, x), x.shape, "contiguous", "last")


def _first(t: Tape, x: Tensor) -> Tensor:
    """Return `x` with its channels before space, copied if they are not there yet."""
    if x.layout == "first" or all(n == 1 for n in x.shape[1:-1]):
        return x
    return p.copied(t, x, x.shape, "contiguous", "first")


def _padded(s: Site, x: Tensor) -> Shape | None:
    """Return the shape that unequal `"same"` padding gives, None if torch pads."""
    layer = s.layer
    if layer.padding != "same":
        return None
    at, shape, uneven = 2 if s.channels_first else 1, list(x.shape), False
    for i, (size, stride) in enumerate(
        zip(layer.kernel_size, layer.strides, strict=True)
    ):
        length, reach = shape[at + i], (size - 1) * layer.dilation_rate[i] + 1
        strided = max(0, (-(-length // stride) - 1) * stride + reach - length)
        total = reach - 1 if stride == 1 else strided
        uneven |= total % 2 == 1
        shape[at + i] += total
    return tuple(shape) if uneven else None


def pooled_max(t: Tape, s: Site, xs: list[Tensor]) -> Tensor:
    """Max pooling: keeps its input and where the maxima were, as int64."""
    where = t.new(s.shape, _INDEX, differentiable=False)
    return _pooled(t, s, xs[0], (where,))


def pooled_average(t: Tape, s: Site, xs: list[Tensor]) -> Tensor:
    """Average pooling: keeps its input."""
    return _pooled(t, s, xs[0], ())


def _pooled(t: Tape, s: Site, x: Tensor, where: tuple[Tensor, ...]) -> Tensor:
    x = x if s.channels_first else _first(t, x)
    y = t.new(s.shape, x.width, layout="first")
    t.op("pooling", (x,), y, *where)

    def pullback(dy: Tensor) -> list[Tensor | None]:
        dx = t.new(x.shape, x.width, layout="first")
        t.op("pooling gradient", (dy, x, *where), dx)
        return [dx]

    t.pull((x,), y, pullback)
    return y


def _finished(t: Tape, s: Site, y: Tensor) -> Tensor:
    if s.layer.use_bias:
        y = p.add(t, y, s.parameter(s.layer.bias))
    return activated(t, s.layer.activation, y)
