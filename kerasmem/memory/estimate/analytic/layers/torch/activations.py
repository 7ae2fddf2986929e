"""Activations in torch: one operation each."""

from typing import Any

from kerasmem.memory.estimate.analytic import primitives as p
from kerasmem.memory.estimate.analytic.layers.names import activation_name
from kerasmem.memory.estimate.analytic.site import Site
from kerasmem.memory.estimate.analytic.tape import Tape
from kerasmem.memory.program import Tensor

_KEEP_OUTPUT = (
    *["softmax", "log_softmax", "relu", "sigmoid", "tanh", "exponential", "exp"],
    "rsqrt",
)


def activated(t: Tape, function: Any, x: Tensor) -> Tensor:
    """Return the activation of `x` by a Keras function, a layer or a name."""
    name = activation_name(function)
    if name == "linear":
        return x
    keeps = p.of_output if name in _KEEP_OUTPUT else p.of_input
    return keeps(t, name, x)


def activation(t: Tape, s: Site, xs: list[Tensor]) -> Tensor:
    """Activation, and layers that are one, such as `ReLU`."""
    return activated(t, getattr(s.layer, "activation", s.layer), xs[0])
