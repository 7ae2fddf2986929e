"""Convolutions and pooling in TensorFlow."""

from kerasmem.memory.estimate.analytic import primitives as p
from kerasmem.memory.estimate.analytic.layers.parts import separable_middle
from kerasmem.memory.estimate.analytic.layers.tensorflow.activations import activated
from kerasmem.memory.estimate.analytic.site import Site
from kerasmem.memory.estimate.analytic.tape import Tape
from kerasmem.memory.program import Shape, Tensor


def convolved(t: Tape, s: Site, xs: list[Tensor]) -> Tensor:
    """Convolutions, transposed or not."""
    kernel = s.parameter(s.layer.kernel)
    return _finished(t, s, convolution(t, xs[0], kernel, s.shape))


def convolved_depthwise(t: Tape, s: Site, xs: list[Tensor]) -> Tensor:
    """DepthwiseConv: TensorFlow's own kernels, without scratch space."""
    kernel = s.parameter(s.layer.kernel)
    return _finished(t, s, p.product(t, "depthwise", xs[0], kernel, s.shape))


def convolved_separably(t: Tape, s: Site, xs: list[Tensor]) -> Tensor:
    """SeparableConv: a depthwise convolution, then one over channels."""
    depthwise = s.parameter(s.layer.depthwise_kernel)
    pointwise = s.parameter(s.layer.pointwise_kernel)
    middle = separable_middle(s, pointwise)
    y = p.product(t, "depthwise", xs[0], depthwise, middle)
    return _finished(t, s, convolution(t, y, pointwise, s.shape))


def convolution(t: Tape, x: Tensor, kernel: Tensor, shape: Shape) -> Tensor:
    """Return a convolution; the scratch space is the device's affair."""
    y = t.new(shape, x.width)
    scratch = t.scratch(x, y, kernel)
    trial = scratch.trial
    t.op("convolution", (x, kernel), y, workspace=scratch.forward, trial=trial)

    def pullback(dy: Tensor) -> list[Tensor | None]:
        dk, dx = t.new(kernel.shape, kernel.width), None
        made, space = [dk], scratch.to_kernel
        if x.differentiable:
            dx = t.new(x.shape, x.width)
            if scratch.at_once:
                made, space = [dk, dx], space + scratch.to_input
        t.op("kernel gradient", (dy, x), *made, workspace=space, trial=trial)
        if dx is not None and not scratch.at_once:
            reads, space = (dy, kernel), scratch.to_input
            t.op("convolution gradient", reads, dx, workspace=space, trial=trial)
        return [dx, dk]

    t.pull((x, kernel), y, pullback)
    return y


def pooled_max(t: Tape, s: Site, xs: list[Tensor]) -> Tensor:
    """Max pooling: keeps its input and its output."""
    return _pooled(t, s, xs[0], keeps=True)


def pooled_average(t: Tape, s: Site, xs: list[Tensor]) -> Tensor:
    """Average pooling: keeps nothing."""
    return _pooled(t, s, xs[0], keeps=False)


def _pooled(t: Tape, s: Site, x: Tensor, *, keeps: bool) -> Tensor:
    y = t.new(s.shape, x.width)
    t.op("pooling", (x,), y)

    def pullback(dy: Tensor) -> list[Tensor | None]:
        dx = t.new(x.shape, x.width)
        t.op("pooling gradient", (dy, x, y) if keeps else (dy,), dx)
        return [dx]

    t.pull((x,), y, pullback)
    return y


def _finished(t: Tape, s: Site, y: Tensor) -> Tensor:
    if s.layer.use_bias:
        y = p.add(t, y, s.parameter(s.layer.bias))
    return activated(t, s.layer.activation, y)
