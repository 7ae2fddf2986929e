"""Normalization layers, at least in float32: several operations, or one in torch."""

from kerasmem.memory.estimate.analytic import primitives as p
from kerasmem.memory.estimate.analytic.layers.common import FLOAT, reduced_shape
from kerasmem.memory.estimate.analytic.tape import Site, Tape
from kerasmem.memory.program import ProgramTensor


def batch_normalization(t: Tape, s: Site, xs: list[ProgramTensor]) -> ProgramTensor:
    """BatchNormalization in TensorFlow: saves its input."""
    layer, x = s.layer, _at_least_float32(t, s, xs)
    shape = reduced_shape(x, [layer.axis])
    factor = t.new(shape, x.width)
    if t.training and layer.trainable:
        factor = _inverse_deviation(t, x, p.reduce(t, x, shape, "mean"))
    if layer.scale:
        factor = p.multiply(t, factor, t.view(s.parameter(layer.gamma), shape))
    beta = t.new(shape, x.width)
    if layer.center:
        beta = t.view(s.parameter(layer.beta), shape)
    return p.cast(t, p.add(t, p.multiply(t, x, factor), beta), s.width)


def _at_least_float32(t: Tape, s: Site, xs: list[ProgramTensor]) -> ProgramTensor:
    return p.cast(t, xs[0], max(FLOAT, s.width))


def _inverse_deviation(t: Tape, x: ProgramTensor, mean: ProgramTensor) -> ProgramTensor:
    constant = t.alias(mean)
    square = p.pointwise(
        t, "squared difference", x, constant, needs=((x, constant), None)
    )
    return p.of_output(t, "rsqrt", p.reduce(t, square, mean.shape, "mean"))


def layer_normalization(t: Tape, s: Site, xs: list[ProgramTensor]) -> ProgramTensor:
    """LayerNormalization in TensorFlow: the scale is first broadcast to all entries."""
    layer, x = s.layer, _at_least_float32(t, s, xs)
    axes = layer.axis if isinstance(layer.axis, (list, tuple)) else [layer.axis]
    rank = len(x.shape)
    axes = {axis % rank for axis in axes}
    shape = reduced_shape(x, [axis for axis in range(rank) if axis not in axes])
    mean = p.reduce(t, x, shape, "mean")
    factor = _inverse_deviation(t, x, mean)
    gamma, beta = s.weight(layer.gamma), s.weight(layer.beta)
    if gamma is not None:
        factor = p.multiply(t, factor, gamma)
    shift = p.multiply(t, mean, factor)
    if beta is not None:
        shift = p.add(t, shift, beta)
    return p.cast(t, p.add(t, p.multiply(t, x, factor), shift), s.width)


def group_normalization(t: Tape, s: Site, xs: list[ProgramTensor]) -> ProgramTensor:
    """GroupNormalization: a factor per sample and channel."""
    layer, x = s.layer, _at_least_float32(t, s, xs)
    mean = p.reduce(t, x, reduced_shape(x, [0, layer.axis]), "mean")
    factor = _inverse_deviation(t, x, mean)
    flat = reduced_shape(x, [layer.axis])
    for variable in (layer.gamma, layer.beta):
        if variable is not None:
            factor = p.multiply(t, factor, t.view(s.parameter(variable), flat))
    return p.cast(t, p.add(t, p.multiply(t, x, factor), mean), s.width)


def rms_normalization(t: Tape, s: Site, xs: list[ProgramTensor]) -> ProgramTensor:
    """RMSNormalization and UnitNormalization."""
    x = _at_least_float32(t, s, xs)
    mean = p.reduce(t, p.of_input(t, "square", x), (*x.shape[:-1], 1), "mean")
    y = p.multiply(t, x, p.of_output(t, "rsqrt", mean))
    gamma = s.weight(getattr(s.layer, "scale", None))
    if gamma is not None:
        y = p.multiply(t, y, gamma)
    return p.cast(t, y, s.width)


def torch_batch_normalization(
    t: Tape, s: Site, xs: list[ProgramTensor]
) -> ProgramTensor:
    """BatchNormalization in torch: saves its input, and a copy without the mean.

    Keras scales the difference in place, so autograd copies it first.
    """
    layer, x = s.layer, _at_least_float32(t, s, xs)
    shape = reduced_shape(x, [layer.axis])
    mean = factor = t.new(shape, x.width)
    if t.training and layer.trainable:
        mean = p.reduce(t, x, shape, "mean")
        square = p.of_input(t, "square", x)
        factor = p.of_output(t, "rsqrt", p.reduce(t, square, shape, "mean"))
    if layer.scale:
        factor = p.multiply(t, factor, t.view(s.parameter(layer.gamma), shape))
    y = p.pointwise(t, "subtract", x, mean, needs=(None, None))
    y = _scale_in_place(t, y, factor)
    if layer.center:
        shift = t.view(s.parameter(layer.beta), shape)
        before, y = y, t.alias(y)
        t.op("add in place", (before, shift), y)
        t.pull(
            (before, shift),
            y,
            lambda dy: [
                dy,
                p.reduce(t, dy, shift.shape) if shift.differentiable else None,
            ],
        )
    return p.cast(t, y, s.width)


def _scale_in_place(t: Tape, x: ProgramTensor, factor: ProgramTensor) -> ProgramTensor:
    before = x
    if t.training and factor.differentiable:
        before = t.new(x.shape, x.width, layout=x.layout)
        t.op("clone", (x,), before)
    y = t.alias(x)
    t.op("multiply in place", (x, factor), y)

    def pullback(dy: ProgramTensor) -> list[ProgramTensor | None]:
        dx = t.new(x.shape, x.width, layout=x.layout)
        t.op("multiply gradient", (dy, factor), dx)
        if not factor.differentiable:
            return [dx, None]
        full = t.new(x.shape, x.width, layout=x.layout)
        t.op("multiply gradient", (dy, before), full)
        return [dx, p.reduce(t, full, factor.shape)]

    t.pull((x, factor), y, pullback)
    return y


def torch_layer_normalization(
    t: Tape, s: Site, xs: list[ProgramTensor]
) -> ProgramTensor:
    """LayerNormalization in torch: one operation, which saves its input."""
    x = _at_least_float32(t, s, xs)
    weights = [s.parameter(v) for v in (s.layer.gamma, s.layer.beta) if v is not None]
    y = t.new(x.shape, x.width)
    y = p.single(t, "layer norm", (x, *weights), y, keeps=(x,))
    return p.cast(t, y, s.width)
