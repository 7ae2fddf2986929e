"""Recurrent layers, and wrappers of other layers."""

import math

from kerasmem.graph.layer_table import class_name
from kerasmem.memory.estimate.analytic import primitives as p
from kerasmem.memory.estimate.analytic.layers.common import FLOAT
from kerasmem.memory.estimate.analytic.tape import Site, Tape
from kerasmem.memory.estimate.scratch import RNN_KEPT, rnn_entries
from kerasmem.memory.program import ProgramTensor, Shape
from kerasmem.types import Layer

_STEPWISE = {"LSTM": 7, "GRU": 6, "SimpleRNN": 1}
"""Values saved per time step for the gradients of a cell. For an LSTM, these are four
gates, the state, the cell state and its tanh, as counted in recorded steps."""
LOOPS = tuple(_STEPWISE)
CELL_LOOP = "loop over a cell"
_IN_FLIGHT = 32
"""Number of time steps that TensorFlow's loops run concurrently. The weight gradients
of all these steps exist before they are summed."""


def recurrent(t: Tape, s: Site, xs: list[ProgramTensor]) -> ProgramTensor:
    """LSTM, GRU and SimpleRNN."""
    layer, x = s.layer, xs[0]
    weights = [s.parameter(v) for v in layer.weights]
    y = t.new((*x.shape[:2], layer.units), x.width)
    in_cudnn = t.how.fused_recurrence and class_name(layer) in RNN_KEPT
    if in_cudnn:
        _in_cudnn(t, layer, x, y, weights)
    else:
        step = x.shape[0] * layer.units * _STEPWISE[class_name(layer)] * x.width
        _in_a_loop(t, xs[:1], y, weights, step)
    return y if layer.return_sequences else p.copy(t, y, s.shape, "last step")


def loop_over_cell(t: Tape, s: Site, xs: list[ProgramTensor]) -> ProgramTensor:
    """RNN and ConvLSTM: the saved activations of the cell, once per time step."""
    layer, x = s.layer, xs[0]
    y = t.new((*x.shape[:2], *s.shape[1 + layer.return_sequences :]), x.width)
    weights = [s.parameter(v) for v in layer.weights]
    saved_bytes, largest = s.step_bytes(layer, x)
    _in_a_loop(t, xs, y, weights, saved_bytes, largest, name=CELL_LOOP)
    return y if layer.return_sequences else p.copy(t, y, s.shape, "last step")


def _in_cudnn(
    t: Tape,
    layer: Layer,
    x: ProgramTensor,
    y: ProgramTensor,
    weights: list[ProgramTensor],
) -> None:
    name = class_name(layer)
    inside = max(FLOAT, x.width)  # cuDNN computes in float32 for any input dtype.
    state = (*x.shape[:2], layer.units * RNN_KEPT[name])
    reserve = t.new(state, inside)
    flat = _flat_weights(t, weights)
    entries = (math.prod(one.shape) for one in (y, x, flat))
    space = rnn_entries(name, *entries) * inside
    t.op("recurrence", (x, flat), y, reserve, workspace=space)

    def pullback(dy: ProgramTensor) -> list[ProgramTensor | None]:
        gradients = [p.gradient_of(t, one) for one in (x, *weights)]
        tensors = [one for one in gradients if one is not None]
        reads = (dy, x, y, reserve, flat)
        t.op("recurrence gradient", reads, *tensors, workspace=space)
        return gradients

    t.pull((x, *weights), y, pullback)


def _in_a_loop(  # noqa: PLR0913 - a private helper
    t: Tape,
    xs: list[ProgramTensor],
    y: ProgramTensor,
    weights: list[ProgramTensor],
    saved: int,
    largest: int = 0,
    *,
    name: str = "loop",
) -> None:
    """Record a loop over time.

    `saved` is the bytes of saved activations per step. `largest` is the additional
    bytes that one step needs.
    """
    read, length = (*xs, *weights), xs[0].shape[1]
    trainable = [w for w in weights if w.differentiable]
    is_saved = t.training and any(x.differentiable for x in read)
    reserve = t.new((saved * (length if is_saved else 1),), 1)
    ahead = 0 if t.how.kernels == "torch" else min(_IN_FLIGHT, length)
    freed_bytes = (reserve.nbytes + xs[0].nbytes) * ahead // length
    space = max(largest, ahead * sum(w.nbytes for w in trainable) - freed_bytes)
    keeps = (*xs, reserve, *weights)
    p.single(t, name, read, y, reserve, keeps=keeps, space=space, workspace=largest)


def _flat_weights(t: Tape, weights: list[ProgramTensor]) -> ProgramTensor:
    transposes = [t.new(w.shape, w.width) for w in weights]
    for weight, copy in zip(weights, transposes, strict=True):
        t.op("transpose", (weight,), copy)
    entries = sum(w.nbytes // w.width for w in weights)
    block = t.new((entries,), weights[0].width)
    t.op("concatenate", transposes, block)
    return block


def bidirectional(t: Tape, s: Site, xs: list[ProgramTensor]) -> ProgramTensor:
    """Bidirectional: one layer over the sequence and one over its reverse."""
    layer = s.layer
    inner = layer.forward_layer
    shapes = inner.compute_output_shape(xs[0].shape)
    shape = tuple(shapes[0] if inner.return_state else shapes)
    there = s.inner(layer.forward_layer, xs[:1], shape)
    reverse = p.copy(t, xs[0], xs[0].shape, "reverse")
    back = s.inner(layer.backward_layer, [reverse], shape)
    if inner.return_sequences:
        back = p.copy(t, back, shape, "reverse")
    if layer.merge_mode == "concat":
        return p.concatenate(t, [there, back], s.shape)
    return p.add(t, there, back)


def time_distributed(t: Tape, s: Site, xs: list[ProgramTensor]) -> ProgramTensor:
    """TimeDistributed: time steps are part of the batch axis."""
    steps = t.view(xs[0], _flat(xs[0].shape))
    return t.view(s.inner(s.layer.layer, [steps], _flat(s.shape)), s.shape)


def _flat(shape: Shape) -> Shape:
    return (shape[0] * shape[1], *shape[2:])


def wrapper(_t: Tape, s: Site, xs: list[ProgramTensor]) -> ProgramTensor:
    """SpectralNormalization and plain wrappers: the wrapped layer."""
    return s.inner(s.layer.layer, xs, s.shape)
