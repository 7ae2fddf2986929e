"""Recurrent layers, and layers that run another layer."""

import math
from typing import Any

from kerasmem.memory.estimate.analytic import primitives as p
from kerasmem.memory.estimate.analytic.layers.parts import FLOAT
from kerasmem.memory.estimate.analytic.site import Handler, Site
from kerasmem.memory.estimate.analytic.tape import Tape
from kerasmem.memory.program import Shape, Tensor

_RESERVED = {"LSTM": 5, "GRU": 6}
"""What cuDNN keeps for the gradient, in sequences of the state: of an LSTM the gates
and the cell. Its own answers for a net of four layers, in PyTorch's issue 2895, come to
these."""
_WORKSPACE = {"LSTM": 5, "GRU": 4}
"""Its scratch space beside inputs and weights: each gate's product with the input, and
the output packed."""
_STEPWISE = {"LSTM": 7, "GRU": 6, "SimpleRNN": 1}
"""What a loop over time keeps of each step: what the cell's gradients read. Of an LSTM
four gates, the state, the cell and its tanh; counted in recorded steps."""
IN_FLIGHT = 32
"""Steps in time that TensorFlow's loops run ahead of one another."""


def recurrent(t: Tape, s: Site, xs: list[Tensor], *, in_flight: int = 0) -> Tensor:
    """LSTM, GRU and SimpleRNN.

    Args:
        t: the tape.
        s: the layer.
        xs: the sequence.
        in_flight: steps in time whose gradients of the weights a loop has made before
            it adds the first of them up.
    """
    layer, x = s.layer, xs[0]
    weights = [s.parameter(v) for v in layer.trainable_variables]
    y = t.new((*x.shape[:2], layer.units), x.width)
    if t.fused_recurrence and type(layer).__name__ in _RESERVED:
        _in_cudnn(t, s, x, y, weights)
    else:
        _in_a_loop(t, s, x, y, weights, in_flight)
    return y if layer.return_sequences else p.copied(t, y, s.shape, "last step")


def _in_cudnn(t: Tape, s: Site, x: Tensor, y: Tensor, weights: list[Tensor]) -> None:
    name = type(s.layer).__name__
    inside = max(FLOAT, x.width)  # it computes in float32 whatever goes in
    state = (*x.shape[:2], s.layer.units * _RESERVED[name])
    reserved = t.new(state, inside, differentiable=False)
    flat = _flattened(t, weights)
    space = _scratch(name, x, y, flat) * inside
    t.op("recurrence", (x, flat), y, reserved, workspace=space)

    def pullback(dy: Tensor) -> list[Tensor | None]:
        dx, *slopes = _gradients(t, x, weights)
        reads = (dy, x, y, reserved, flat)
        t.op("recurrence gradient", reads, dx, *slopes, workspace=space)
        return [dx, *slopes]

    t.pull((x, *weights), y, pullback)


def _in_a_loop(
    t: Tape, s: Site, x: Tensor, y: Tensor, weights: list[Tensor], in_flight: int
) -> None:
    kept = _STEPWISE[type(s.layer).__name__]
    state = (*x.shape[:2], s.layer.units * kept)
    reserved = t.new(state, x.width, differentiable=False)
    t.op("loop", (x, *weights), y, reserved)
    ahead = min(in_flight, x.shape[1])
    freed = (reserved.nbytes + x.nbytes) * ahead // x.shape[1]
    space = max(0, ahead * sum(w.nbytes for w in weights) - freed)

    def pullback(dy: Tensor) -> list[Tensor | None]:
        dx, *slopes = _gradients(t, x, weights)
        reads = (dy, x, reserved, *weights)
        t.op("loop gradient", reads, dx, *slopes, workspace=space)
        return [dx, *slopes]

    t.pull((x, *weights), y, pullback)


def _gradients(t: Tape, x: Tensor, weights: list[Tensor]) -> list[Tensor]:
    return [t.new(one.shape, one.width) for one in (x, *weights)]


def _scratch(name: str, x: Tensor, y: Tensor, weights: Tensor) -> int:
    """Return the entries of cuDNN's scratch space: the weights are in it twice."""
    return (
        math.prod(y.shape) * _WORKSPACE[name]
        + math.prod(x.shape)
        + 2 * math.prod(weights.shape)
    )


def _flattened(t: Tape, weights: list[Tensor]) -> Tensor:
    """Return the weights as cuDNN takes them: transposed, in one block."""
    turned = [t.new(w.shape, w.width, differentiable=False) for w in weights]
    for weight, copy in zip(weights, turned, strict=True):
        t.op("transpose", (weight,), copy)
    entries = sum(w.nbytes // w.width for w in weights)
    block = t.new((entries,), weights[0].width, differentiable=False)
    t.op("concatenate", turned, block)
    return block


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


LOOPS = ("LSTM", "GRU", "SimpleRNN")
RECURRENT: dict[str, Handler] = {
    **dict.fromkeys(LOOPS, recurrent),
    "Bidirectional": both_ways,
    "TimeDistributed": over_time,
    **dict.fromkeys(["Wrapper", "SpectralNormalization"], wrapped),
}
