"""Normalization in torch."""

from kerasmem.memory.estimate.analytic import primitives as p
from kerasmem.memory.estimate.analytic.layers.parts import FLOAT, kept_axes
from kerasmem.memory.estimate.analytic.site import Site
from kerasmem.memory.estimate.analytic.tape import Tape
from kerasmem.memory.program import Tensor


def normalized_batch(t: Tape, s: Site, xs: list[Tensor]) -> Tensor:
    """BatchNormalization: keeps its input, and a copy of it less the mean.

    Keras scales the difference in place, and autograd copies it before.
    """
    layer, x = s.layer, p.converted(t, xs[0], max(FLOAT, s.width))
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
        y = _shifted_in_place(t, y, t.view(s.parameter(layer.beta), shape))
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


def _shifted_in_place(t: Tape, x: Tensor, shift: Tensor) -> Tensor:
    y = t.alias(x)
    t.op("add in place", (x, shift), y)
    t.pull((x, shift), y, lambda dy: [dy, p.reduced(t, dy, shift.shape)])
    return y


def normalized_layer(t: Tape, s: Site, xs: list[Tensor]) -> Tensor:
    """LayerNormalization: one operation, which keeps its input."""
    x = p.converted(t, xs[0], max(FLOAT, s.width))
    variables = (s.layer.gamma, s.layer.beta)
    weights = [s.parameter(v) for v in variables if v is not None]
    y = t.new(x.shape, x.width)
    t.op("layer norm", (x, *weights), y)

    def pullback(dy: Tensor) -> list[Tensor | None]:
        dx = t.new(x.shape, x.width)
        slopes = [t.new(w.shape, w.width) for w in weights]
        t.op("layer norm gradient", (dy, x), dx, *slopes)
        return [dx, *slopes]

    t.pull((x, *weights), y, pullback)
    return p.converted(t, y, s.width)
