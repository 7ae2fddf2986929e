"""Recurrent layers, and layers that run another layer."""

from typing import Any

from kerasmem.memory.estimate.analytic import primitives as p
from kerasmem.memory.estimate.analytic.layers.parts import FLOAT
from kerasmem.memory.estimate.analytic.site import Handler, Site
from kerasmem.memory.estimate.analytic.tape import Tape
from kerasmem.memory.estimate.analytic.tensor import Shape, Tensor

_RESERVED = {"LSTM": 5, "GRU": 5}
"""What cuDNN keeps for the gradient, in sequences of the state: gates and cells."""
_WORKSPACE = {"LSTM": 8, "GRU": 6}
"""Its scratch space: each gate's product with the input, once packed, once padded."""
_STEPWISE = {"LSTM": 18, "GRU": 16, "SimpleRNN": 4}
"""What a loop over time keeps of each step: every result within the cell."""


def recurrent(t: Tape, s: Site, xs: list[Tensor]) -> Tensor:
    """LSTM, GRU and SimpleRNN."""
    layer, x = s.layer, xs[0]
    name = type(layer).__name__
    sequence = (*x.shape[:2], layer.units)
    weights = [s.parameter(v) for v in layer.trainable_variables]
    fast = t.fused_recurrence and name in _RESERVED
    kept = (_RESERVED if fast else _STEPWISE)[name]
    y = t.new(sequence, x.width)
    state = (*x.shape[:2], layer.units * kept)
    # cuDNN computes in float32 whatever goes in.
    inside = max(FLOAT, x.width) if fast else x.width
    reserved = t.new(state, inside, differentiable=False)
    flat = _flattened(t, weights) if fast else weights
    space = y.nbytes // y.width * inside * _WORKSPACE[name] if fast else 0
    t.op("recurrence", (x, *flat), y, reserved, workspace=space)

    def pullback(dy: Tensor) -> list[Tensor | None]:
        dx = t.new(x.shape, x.width)
        slopes = [t.new(w.shape, w.width) for w in weights]
        reads = (dy, x, y, reserved, *flat)
        t.op("recurrence gradient", reads, dx, *slopes, workspace=space)
        return [dx, *slopes]

    t.pull((x, *weights), y, pullback)
    return y if layer.return_sequences else p.copied(t, y, s.shape, "last step")


def _flattened(t: Tape, weights: list[Tensor]) -> list[Tensor]:
    """Return the weights as cuDNN takes them: transposed, in one block."""
    turned = [t.new(w.shape, w.width, differentiable=False) for w in weights]
    for weight, copy in zip(weights, turned, strict=True):
        t.op("transpose", (weight,), copy)
    entries = sum(w.nbytes // w.width for w in weights)
    block = t.new((entries,), weights[0].width, differentiable=False)
    t.op("concatenate", turned, block)
    return [block]


def both_ways(t: Tape, s: Site, xs: list[Tensor]) -> Tensor:
    """Bidirectional: a layer over the sequence and one over its reverse."""
    layer = s.layer
    inner = layer.forward_layer
    length = xs[0].shape[1:2] if inner.return_sequences else ()
    shape = (xs[0].shape[0], *length, inner.units)
    there = s.inner(layer.forward_layer, xs, shape)
    reverse = p.copied(t, xs[0], xs[0].shape, "reverse")
    back = s.inner(layer.backward_layer, [reverse], shape)
    if inner.return_sequences:
        back = p.copied(t, back, shape, "reverse")
    if layer.merge_mode == "concat":
        return p.joined(t, [there, back], s.shape)
    return p.add(t, there, back)


def over_time(t: Tape, s: Site, xs: list[Tensor]) -> Tensor:
    """TimeDistributed: the steps in time as so many more samples."""
    return t.view(s.inner(s.layer.layer, [_merged(t, xs[0])], _flat(s.shape)), s.shape)


def _merged(t: Tape, x: Tensor) -> Tensor:
    return t.view(x, _flat(x.shape))


def _flat(shape: Shape) -> Shape:
    return (shape[0] * shape[1], *shape[2:])


def wrapped(_t: Tape, s: Site, xs: list[Tensor]) -> Tensor:
    """SpectralNormalization and plain wrappers: the layer inside."""
    inner: Any = s.layer.layer
    return s.inner(inner, xs, s.shape)


RECURRENT: dict[str, Handler] = {
    **dict.fromkeys(["LSTM", "GRU", "SimpleRNN"], recurrent),
    "Bidirectional": both_ways,
    "TimeDistributed": over_time,
    **dict.fromkeys(["Wrapper", "SpectralNormalization"], wrapped),
}
