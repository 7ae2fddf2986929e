"""Normalization in TensorFlow: single operations, at least in float32."""

from kerasmem.memory.estimate.analytic import primitives as p
from kerasmem.memory.estimate.analytic.layers.parts import FLOAT, kept_axes
from kerasmem.memory.estimate.analytic.site import Site
from kerasmem.memory.estimate.analytic.tape import Tape
from kerasmem.memory.program import Tensor


def normalized_batch(t: Tape, s: Site, xs: list[Tensor]) -> Tensor:
    """BatchNormalization: keeps its input."""
    layer, x = s.layer, p.converted(t, xs[0], max(FLOAT, s.width))
    shape = kept_axes(x, [layer.axis])
    factor = t.new(shape, x.width)
    if t.training and layer.trainable:
        factor = inverse_deviation(t, x, p.reduced(t, x, shape, "mean"))
    if layer.scale:
        factor = p.multiply(t, factor, t.view(s.parameter(layer.gamma), shape))
    beta = t.new(shape, x.width)
    if layer.center:
        beta = t.view(s.parameter(layer.beta), shape)
    return p.converted(t, p.add(t, p.multiply(t, x, factor), beta), s.width)


def inverse_deviation(t: Tape, x: Tensor, mean: Tensor) -> Tensor:
    """Return one over the standard deviation, in the shape of the mean."""
    fixed = t.alias(mean)
    fixed.differentiable = False
    square = p.pointwise(t, "squared difference", x, fixed, needs=((x, fixed), None))
    return p.of_output(t, "rsqrt", p.reduced(t, square, mean.shape, "mean"))


def normalized_layer(t: Tape, s: Site, xs: list[Tensor]) -> Tensor:
    """LayerNormalization: its scale is spread over every entry before it is used."""
    layer, x = s.layer, p.converted(t, xs[0], max(FLOAT, s.width))
    axes = layer.axis if isinstance(layer.axis, (list, tuple)) else [layer.axis]
    rank = len(x.shape)
    axes = {axis % rank for axis in axes}
    shape = kept_axes(x, [axis for axis in range(rank) if axis not in axes])
    mean = p.reduced(t, x, shape, "mean")
    factor = inverse_deviation(t, x, mean)
    gamma, beta = s.weight(layer.gamma), s.weight(layer.beta)
    if gamma is not None:
        factor = p.multiply(t, factor, gamma)
    shift = p.multiply(t, mean, factor)
    if beta is not None:
        shift = p.add(t, shift, beta)
    return p.converted(t, p.add(t, p.multiply(t, x, factor), shift), s.width)


def normalized_group(t: Tape, s: Site, xs: list[Tensor]) -> Tensor:
    """GroupNormalization: a factor per sample and channel."""
    layer, x = s.layer, p.converted(t, xs[0], max(FLOAT, s.width))
    mean = p.reduced(t, x, kept_axes(x, [0, layer.axis]), "mean")
    factor = inverse_deviation(t, x, mean)
    flat = kept_axes(x, [layer.axis])
    for variable in (layer.gamma, layer.beta):
        if variable is not None:
            factor = p.multiply(t, factor, t.view(s.parameter(variable), flat))
    return p.converted(t, p.add(t, p.multiply(t, x, factor), mean), s.width)


def normalized_rms(t: Tape, s: Site, xs: list[Tensor]) -> Tensor:
    """RMSNormalization and UnitNormalization."""
    x = p.converted(t, xs[0], max(FLOAT, s.width))
    square = p.of_input(t, "square", x)
    mean = p.reduced(t, square, (*x.shape[:-1], 1), "mean")
    y = p.multiply(t, x, p.of_output(t, "rsqrt", mean))
    gamma = s.weight(getattr(s.layer, "scale", None))
    if gamma is not None:
        y = p.multiply(t, y, gamma)
    return p.converted(t, y, s.width)
