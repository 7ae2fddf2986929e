"""Normalization, at least in float32: several operations, or one in torch."""

from kerasmem.memory.estimate.analytic import primitives as p
from kerasmem.memory.estimate.analytic.layers.common import FLOAT, kept_axes
from kerasmem.memory.estimate.analytic.tape import Site, Tape
from kerasmem.memory.program import Tensor


def normalized_batch(t: Tape, s: Site, xs: list[Tensor]) -> Tensor:
    """BatchNormalization in TensorFlow: keeps its input."""
    layer, x = s.layer, _wide(t, s, xs)
    shape = kept_axes(x, [layer.axis])
    factor = t.new(shape, x.width)
    if t.training and layer.trainable:
        factor = _inverse_deviation(t, x, p.reduced(t, x, shape, "mean"))
    if layer.scale:
        factor = p.multiply(t, factor, t.view(s.parameter(layer.gamma), shape))
    beta = t.new(shape, x.width)
    if layer.center:
        beta = t.view(s.parameter(layer.beta), shape)
    return p.converted(t, p.add(t, p.multiply(t, x, factor), beta), s.width)


def _wide(t: Tape, s: Site, xs: list[Tensor]) -> Tensor:
    return p.converted(t, xs[0], max(FLOAT, s.width))


def _inverse_deviation(t: Tape, x: Tensor, mean: Tensor) -> Tensor:
    """Return one over the standard deviation, in the shape of the mean."""
    fixed = t.alias(mean)
    fixed.differentiable = False
    square = p.pointwise(t, "squared difference", x, fixed, needs=((x, fixed), None))
    return p.of_output(t, "rsqrt", p.reduced(t, square, mean.shape, "mean"))


def normalized_layer(t: Tape, s: Site, xs: list[Tensor]) -> Tensor:
    """LayerNormalization in TensorFlow: its scale is spread over every entry first."""
    layer, x = s.layer, _wide(t, s, xs)
    axes = layer.axis if isinstance(layer.axis, (list, tuple)) else [layer.axis]
    rank = len(x.shape)
    axes = {axis % rank for axis in axes}
    shape = kept_axes(x, [axis for axis in range(rank) if axis not in axes])
    mean = p.reduced(t, x, shape, "mean")
    factor = _inverse_deviation(t, x, mean)
    gamma, beta = s.weight(layer.gamma), s.weight(layer.beta)
    if gamma is not None:
        factor = p.multiply(t, factor, gamma)
    shift = p.multiply(t, mean, factor)
    if beta is not None:
        shift = p.add(t, shift, beta)
    return p.converted(t, p.add(t, p.multiply(t, x, factor), shift), s.width)


def normalized_group(t: Tape, s: Site, xs: list[Tensor]) -> Tensor:
    """GroupNormalization: a factor per sample and channel."""
    layer, x = s.layer, _wide(t, s, xs)
    mean = p.reduced(t, x, kept_axes(x, [0, layer.axis]), "mean")
    factor = _inverse_deviation(t, x, mean)
    flat = kept_axes(x, [layer.axis])
    for variable in (layer.gamma, layer.beta):
        if variable is not None:
            factor = p.multiply(t, factor, t.view(s.parameter(variable), flat))
    return p.converted(t, p.add(t, p.multiply(t, x, factor), mean), s.width)


def normalized_rms(t: Tape, s: Site, xs: list[Tensor]) -> Tensor:
    """RMSNormalization and UnitNormalization."""
    x = _wide(t, s, xs)
    mean = p.reduced(t, p.of_input(t, "square", x), (*x.shape[:-1], 1), "mean")
    y = p.multiply(t, x, p.of_output(t, "rsqrt", mean))
    gamma = s.weight(getattr(s.layer, "scale", None))
    if gamma is not None:
        y = p.multiply(t, y, gamma)
    return p.converted(t, y, s.width)


def normalized_batch_in_torch(t: Tape, s: Site, xs: list[Tensor]) -> Tensor:
    """BatchNormalization in torch: keeps its input, and a copy of it less the mean.

    Keras scales the difference in place, and autograd copies it before.
    """
    layer, x = s.layer, _wide(t, s, xs)
    shape = kept_axes(x, [layer.axis])
    mean = factor = t.new(shape, x.width, differentiable=False)
    if t.training and layer.trainable:
        mean = p.reduced(t, x, shape, "mean")
        square = p.of_input(t, "square", x)
        factor = p.of_output(t, "rsqrt", p.reduced(t, square, shape, "mean"))
    if layer.scale:
        factor = p.multiply(t, factor, t.view(s.parameter(layer.gamma), shape))
    y = p.pointwise(t, "subtract", x, mean, needs=(None, None))
    y = _scaled_in_place(t, y, factor)
    if layer.center:
        shift = t.view(s.parameter(layer.beta), shape)
        unshifted, y = y, t.alias(y)
        t.op("add in place", (unshifted, shift), y)
        t.pull((unshifted, shift), y, lambda dy: [dy, p.reduced(t, dy, shift.shape)])
    return p.converted(t, y, s.width)


def _scaled_in_place(t: Tape, x: Tensor, factor: Tensor) -> Tensor:
    before = x
    if t.training and factor.differentiable:
        before = t.new(x.shape, x.width, layout=x.layout)
        t.op("clone", (x,), before)
    y = t.alias(x)
    t.op("multiply in place", (x, factor), y)

    def pullback(dy: Tensor) -> list[Tensor | None]:
        dx = t.new(x.shape, x.width, layout=x.layout)
        t.op("multiply gradient", (dy, factor), dx)
        if not factor.differentiable:
            return [dx, None]
        full = t.new(x.shape, x.width, layout=x.layout)
        t.op("multiply gradient", (dy, before), full)
        return [dx, p.reduced(t, full, factor.shape)]

    t.pull((x, factor), y, pullback)
    return y


def normalized_layer_in_torch(t: Tape, s: Site, xs: list[Tensor]) -> Tensor:
    """LayerNormalization in torch: one operation, which keeps its input."""
    x = _wide(t, s, xs)
    weights = [s.parameter(v) for v in (s.layer.gamma, s.layer.beta) if v is not None]
    y = t.new(x.shape, x.width)
    y = p.single(t, "layer norm", (x, *weights), y, keeps=(x,))
    return p.converted(t, y, s.width)
