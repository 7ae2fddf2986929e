"""Activations: one operation per activation in torch, several in TensorFlow."""

from typing import Any

import keras

from kerasmem.graph.layers import node_of
from kerasmem.memory.estimate.analytic import primitives as p
from kerasmem.memory.estimate.analytic.tape import Site, Tape
from kerasmem.memory.program import ProgramTensor

_KEEP_OUTPUT = frozenset(["relu", "sigmoid", "tanh", "exponential", "exp", "rsqrt"])
_KEEP_OUTPUT_IN_TORCH = _KEEP_OUTPUT | {"softmax", "log_softmax"}
_KEEP_OUTPUT_IN_TENSORFLOW = _KEEP_OUTPUT | {"relu6", "selu", "elu"}


_SAME = {
    "leakyrelu": "leaky_relu",
    "logsoftmax": "log_softmax",
    "hardsilu": "hard_silu",
    "hardswish": "hard_silu",
    "hard_swish": "hard_silu",
    "hardsigmoid": "hard_sigmoid",
    "swish": "silu",
}


def activation_name(function: Any) -> str:
    """Return the name of an activation function or layer, or of `None` for linear."""
    if function is None:
        return "linear"
    name = getattr(function, "__name__", None)
    if name is None:
        name = type(function).__name__.lower()
        if name == "gelu" and getattr(function, "approximate", True):
            return "gelu_approximate"
    elif name not in vars(keras.activations):
        return _of_operation(function, name)
    return _SAME.get(name, name)


def _of_operation(function: Any, name: str) -> str:
    x = keras.Input((1,))
    try:
        y = function(x)
    except Exception:  # noqa: BLE001 - custom functions may raise anything on symbols
        return name
    if not isinstance(y, keras.KerasTensor):
        return name
    call = node_of(y)
    is_all = len(call.input_tensors) == 1 and call.input_tensors[0] is x
    return activation_name(call.operation) if is_all else name


def activate(t: Tape, function: Any, x: ProgramTensor) -> ProgramTensor:
    """Apply an activation to `x`, given as a Keras function, a layer or a name."""
    name = activation_name(function)
    if name == "linear":
        return x
    in_torch = t.how.kernels == "torch"
    if name in (_KEEP_OUTPUT_IN_TORCH if in_torch else _KEEP_OUTPUT_IN_TENSORFLOW):
        return p.of_output(t, name, x)
    composition = None if in_torch else _COMPOSED.get(name)
    return composition(t, x) if composition else p.of_input(t, name, x)


def activation(t: Tape, s: Site, xs: list[ProgramTensor]) -> ProgramTensor:
    """Activation layers, including layers such as `ReLU`."""
    return activate(t, getattr(s.layer, "activation", s.layer), xs[0])


def activation_or_softmax(t: Tape, s: Site, xs: list[ProgramTensor]) -> ProgramTensor:
    """Activation and Softmax. With a mask, the masked result is stored too."""
    name = activation_name(getattr(s.layer, "activation", s.layer))
    if "softmax" not in name:
        return activation(t, s, xs)
    y = p.softmax(t, xs[0]) if t.how.kernels == "xla" else activation(t, s, xs)
    masks = xs[1:]
    return p.pointwise(t, "where", y, *masks, needs=[masks, None]) if masks else y


def softmax(t: Tape, x: ProgramTensor, *, scale_follows: bool = False) -> ProgramTensor:
    """Return the softmax of `x`, with scratch space of twice its output.

    With `scale_follows`, the gradient is multiplied by a constant, and the graph
    optimizer also saves the scaled output.
    """
    y = t.new(x.shape, x.width)
    t.op("softmax", (x,), y, over=(x,), workspace=2 * y.nbytes)
    factor = y
    if scale_follows and t.training:
        factor = t.new(x.shape, x.width)
        t.op("scale", (y,), factor, fusible=True)

    def pullback(dy: ProgramTensor) -> list[ProgramTensor | None]:
        product, dx = t.new(y.shape, y.width), t.new(y.shape, y.width)
        t.op("softmax gradient", (dy, y), product, fusible=True)
        reads = (dy, factor, product)
        t.op("softmax gradient", reads, dx, over=(dy, product), fusible=True)
        return [dx]

    t.pull((x,), y, pullback)
    return y


def _silu(t: Tape, x: ProgramTensor) -> ProgramTensor:
    gate, y = t.new(x.shape, x.width), t.new(x.shape, x.width)
    t.op("sigmoid", (x,), gate, fusible=True)
    t.op("silu", (x, gate), y, over=(gate,), fusible=True)

    def pullback(dy: ProgramTensor) -> list[ProgramTensor | None]:
        again, slope, dx = (t.new(x.shape, x.width) for _ in range(3))
        t.op("sigmoid", (x, dy), again, fusible=True)
        t.op("silu slope", (x, again), slope, fusible=True)
        t.op("silu gradient", (dy, slope, again), dx, over=(dy, slope), fusible=True)
        return [dx]

    t.pull((x,), y, pullback)
    return y


def _apart(t: Tape, x: ProgramTensor) -> ProgramTensor:
    return p.pointwise(t, "scale", x, needs=((),), free=True)


def _gelu(t: Tape, x: ProgramTensor) -> ProgramTensor:
    """0.5 x erfc(-x / sqrt 2): three factors are saved in addition to the output.

    XLA fuses the first factor into its consumer.
    """
    inner = x if t.how.kernels == "xla" else _apart(t, x)
    # XLA does not recompute erfc, because it is expensive.
    erfc = p.pointwise(t, "erfc", inner, needs=((inner,),), fusible=False)
    return p.multiply(t, p.scale(t, x), erfc)


def _gelu_approximate(t: Tape, x: ProgramTensor) -> ProgramTensor:
    half = _apart(t, x)
    # The gradient of the power also needs the square, and both squares are shared.
    square = t.new(x.shape, x.width)
    t.op("square", (x,), square, fusible=True)
    cube = p.pointwise(t, "cube", x, square, needs=((square,), None), free=True)
    inner = p.add(t, x, p.scale(t, cube))
    return p.multiply(t, half, _apart(t, p.of_output(t, "tanh", p.scale(t, inner))))


def _hard_silu(t: Tape, x: ProgramTensor) -> ProgramTensor:
    return p.multiply(t, x, p.scale(t, p.of_output(t, "relu6", _apart(t, x))))


_COMPOSED = {
    "silu": _silu,
    "gelu": _gelu,
    "gelu_approximate": _gelu_approximate,
    "softmax": softmax,
    "log_softmax": softmax,
    "hard_silu": _hard_silu,
}
