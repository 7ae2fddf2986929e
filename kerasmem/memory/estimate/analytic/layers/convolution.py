"""Convolutions and pooling. In torch, Keras transposes the channels."""

from kerasmem.memory.estimate.analytic import primitives as p
from kerasmem.memory.estimate.analytic.layers.activations import activate
from kerasmem.memory.estimate.analytic.layers.common import kernel_of
from kerasmem.memory.estimate.analytic.tape import Site, Tape
from kerasmem.memory.program import ProgramTensor, Shape

_INDEX = 8  # Bytes of an int64.


def convolution_layer(t: Tape, s: Site, xs: list[ProgramTensor]) -> ProgramTensor:
    """Convolutions in TensorFlow, including transposed ones."""
    kernel = kernel_of(t, s, s.layer)
    return _with_bias_and_activation(t, s, convolution(t, xs[0], kernel, s.shape))


def depthwise_convolution(t: Tape, s: Site, xs: list[ProgramTensor]) -> ProgramTensor:
    """DepthwiseConv: TensorFlow kernels without scratch space."""
    kernel = s.parameter(s.layer.kernel)
    return _with_bias_and_activation(
        t, s, p.product(t, "depthwise", xs[0], kernel, s.shape)
    )


def separable_convolution(t: Tape, s: Site, xs: list[ProgramTensor]) -> ProgramTensor:
    """SeparableConv: a depthwise convolution, then a pointwise convolution."""
    depthwise = s.parameter(s.layer.depthwise_kernel)
    pointwise = s.parameter(s.layer.pointwise_kernel)
    channels = pointwise.shape[-2]
    middle = (*s.shape[:-1], channels)
    if s.channels_first:
        middle = (s.shape[0], channels, *s.shape[2:])
    if t.how.kernels != "torch":
        y = p.product(t, "depthwise", xs[0], depthwise, middle)
        return _with_bias_and_activation(t, s, convolution(t, y, pointwise, s.shape))
    y = _convolution_of_copies(t, s, xs[0], depthwise, middle)
    y = y if s.channels_first else _last(t, y)
    return _with_bias_and_activation(t, s, _torch_kernel(t, y, pointwise, s.shape))


def convolution(
    t: Tape, x: ProgramTensor, kernel: ProgramTensor, shape: Shape
) -> ProgramTensor:
    """Record a convolution with the scratch space of the framework."""
    y = t.new(shape, x.width)
    scratch = t.how.scratch(x, y, kernel)
    trial = scratch.trial
    t.op("convolution", (x, kernel), y, workspace=scratch.forward, trial=trial)

    def pullback(dy: ProgramTensor) -> list[ProgramTensor | None]:
        dx, dk = p.gradient_of(t, x), p.gradient_of(t, kernel)
        at_once = scratch.at_once and dx is not None
        if dk is not None:
            gradients, space = [dk], scratch.to_kernel
            if dx is not None and at_once:
                gradients, space = [dk, dx], space + scratch.to_input
            t.op("kernel gradient", (dy, x), *gradients, workspace=space, trial=trial)
        if dx is not None and (dk is None or not at_once):
            reads, space = (dy, kernel), scratch.to_input
            t.op("convolution gradient", reads, dx, workspace=space, trial=trial)
        return [dx, dk]

    t.pull((x, kernel), y, pullback)
    return y


def torch_convolution(t: Tape, s: Site, xs: list[ProgramTensor]) -> ProgramTensor:
    """Convolutions in torch, including depthwise ones."""
    kernel = s.parameter(s.layer.kernel)
    return _with_bias_and_activation(
        t, s, _convolution_of_copies(t, s, xs[0], kernel, s.shape)
    )


def torch_transposed_convolution(
    t: Tape, s: Site, xs: list[ProgramTensor]
) -> ProgramTensor:
    """Transposed convolutions in torch, with channels first."""
    x = xs[0] if s.channels_first else _first(t, xs[0])
    y = _torch_kernel(t, x, kernel_of(t, s, s.layer), s.shape)
    y.layout = "first"
    return _with_bias_and_activation(t, s, y)


def _convolution_of_copies(
    t: Tape, s: Site, x: ProgramTensor, kernel: ProgramTensor, shape: Shape
) -> ProgramTensor:
    if not s.channels_first:
        x = _last(t, x)
        kernel = p.copy(t, kernel, kernel.shape, "contiguous")
    padded_shape = _uneven_padding(s, x)
    if padded_shape is not None:
        x = p.copy(t, x, padded_shape, "pad")
    return _torch_kernel(t, x, kernel, shape)


def convolution_operation(t: Tape, s: Site, xs: list[ProgramTensor]) -> ProgramTensor:
    """`keras.ops.conv`."""
    if t.how.kernels != "torch":
        return convolution(t, xs[0], xs[1], s.shape)
    return _torch_kernel(
        t, xs[0] if s.channels_first else _last(t, xs[0]), xs[1], s.shape
    )


def _torch_kernel(
    t: Tape, x: ProgramTensor, kernel: ProgramTensor, shape: Shape
) -> ProgramTensor:
    y = t.new(shape, x.width)
    t.op("convolution", (x, kernel), y)

    def pullback(dy: ProgramTensor) -> list[ProgramTensor | None]:
        gradients = [p.gradient_of(t, x), p.gradient_of(t, kernel)]
        tensors = [one for one in gradients if one is not None]
        t.op("convolution gradient", (dy, x, kernel), *tensors)
        return gradients

    t.pull((x, kernel), y, pullback)
    return y


def _last(t: Tape, x: ProgramTensor) -> ProgramTensor:
    """Return `x` in the layout that Keras passes to a convolution.

    Keras copies to channels first, then back to channels last for cuDNN.
    """
    if all(n == 1 for n in x.shape[1:-1]):
        return x
    return p.copy(t, _first(t, x), x.shape, "contiguous", "last")


def _first(t: Tape, x: ProgramTensor) -> ProgramTensor:
    if x.layout == "first" or all(n == 1 for n in x.shape[1:-1]):
        return x
    return p.copy(t, x, x.shape, "contiguous", "first")


def _uneven_padding(s: Site, x: ProgramTensor) -> Shape | None:
    layer = s.layer
    if layer.padding != "same":
        return None
    at, shape, uneven = 2 if s.channels_first else 1, list(x.shape), False
    for i, (size, stride) in enumerate(
        zip(layer.kernel_size, layer.strides, strict=True)
    ):
        length, reach = shape[at + i], (size - 1) * layer.dilation_rate[i] + 1
        stride_padding = max(0, (-(-length // stride) - 1) * stride + reach - length)
        total = reach - 1 if stride == 1 else stride_padding
        uneven |= total % 2 == 1
        shape[at + i] += total
    return tuple(shape) if uneven else None


def max_pooling(t: Tape, s: Site, xs: list[ProgramTensor]) -> ProgramTensor:
    """Max pooling: TensorFlow saves the input and the output."""
    y = t.new(s.shape, xs[0].width)
    return p.single(t, "pooling", xs[:1], y, keeps=(xs[0], y))


def average_pooling(t: Tape, s: Site, xs: list[ProgramTensor]) -> ProgramTensor:
    """Average pooling: TensorFlow saves nothing."""
    return p.single(t, "pooling", xs[:1], t.new(s.shape, xs[0].width))


def adaptive_average_pooling(
    t: Tape, s: Site, xs: list[ProgramTensor]
) -> ProgramTensor:
    """Adaptive average pooling: one axis after the other.

    Keras computes the means of all windows of two lengths and takes some of them.
    """
    x = xs[0]
    if s.channels_first:
        x = p.copy(t, x, (x.shape[0], *x.shape[2:], x.shape[1]), "transpose")
    for axis, size in enumerate(s.layer.output_size, 1):
        before, length, after = x.shape[:axis], x.shape[axis], x.shape[axis + 1 :]
        most = length - -(-length // size) + 1  # positions of the shorter window
        means = [
            p.single(t, "pooling", (x,), t.new((*before, n, *after), x.width))
            for n in (most, most - 1)
        ]
        both = p.concatenate(t, means, (*before, 2 * most - 1, *after))
        # The gradient moves the axis to the front, adds up rows and moves it back.
        y, space = t.new((*before, size, *after), x.width), both.nbytes
        x = p.single(t, "gather", (both,), y, space=space)
    return p.copy(t, x, s.shape, "transpose") if s.channels_first else x


def torch_max_pooling(t: Tape, s: Site, xs: list[ProgramTensor]) -> ProgramTensor:
    """Max pooling: torch saves the input and the int64 indices of the maxima."""
    return _torch_pooling(t, s, xs[0], t.new(s.shape, _INDEX))


def torch_average_pooling(t: Tape, s: Site, xs: list[ProgramTensor]) -> ProgramTensor:
    """Average pooling: torch saves the input."""
    return _torch_pooling(t, s, xs[0])


def _torch_pooling(
    t: Tape, s: Site, x: ProgramTensor, *where: ProgramTensor
) -> ProgramTensor:
    x = x if s.channels_first else _first(t, x)
    y = t.new(s.shape, x.width, layout="first")
    return p.single(t, "pooling", (x,), y, *where, keeps=(x, *where))


def _with_bias_and_activation(t: Tape, s: Site, y: ProgramTensor) -> ProgramTensor:
    if s.layer.use_bias:
        y = p.add(t, y, s.parameter(s.layer.bias))
    return activate(t, s.layer.activation, y)
