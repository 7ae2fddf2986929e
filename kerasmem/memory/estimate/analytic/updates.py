"""Records the updates of variables by an optimizer."""

from collections.abc import Callable, Sequence
from typing import Any

from kerasmem.memory.estimate.analytic.tape import Tape
from kerasmem.memory.program import ProgramTensor
from kerasmem.types import Optimizer

_LISTS = {
    "SGD": 0,
    "Lion": 2,
    **dict.fromkeys(["Adagrad", "Adam", "AdamW", "Adamax", "RMSprop"], 3),
    "Adadelta": 4,
    "Nadam": 5,
}
"""Simultaneous copies of all variables in Keras's torch optimizers, from their code.
Each optimizer applies one operation at a time to lists of all variables."""
_ONE_BY_ONE = 4
"""Copies of a variable in an optimizer that updates one variable at a time."""


def inner_optimizer(optimizer: Optimizer) -> Any:
    """Return the wrapped optimizer of a loss-scaling optimizer."""
    return getattr(optimizer, "inner_optimizer", optimizer)


def update_by_variable(
    tape: Tape, optimizer: Optimizer, *, merged: bool
) -> Callable[[ProgramTensor, ProgramTensor], None]:
    """Return a function that records the update of one variable by its gradient.

    XLA fuses the update into one operation. TensorFlow runs some per moment.
    """
    inner = inner_optimizer(optimizer)
    plain = type(inner).__name__ == "SGD" and not inner.momentum

    def update(variable: ProgramTensor, gradient: ProgramTensor) -> None:
        if merged:
            tape.op("update", (gradient,), tape.new((0,), 1))
        elif plain:
            _assigned(tape, _chain(tape, gradient, 1))
        else:
            _with_moments(tape, variable, gradient)

    return update


def _with_moments(t: Tape, variable: ProgramTensor, gradient: ProgramTensor) -> None:

    def new(
        name: str, x: ProgramTensor, over: Sequence[ProgramTensor] = ()
    ) -> ProgramTensor:
        # The sparse gradient of an embedding becomes dense here.
        y = t.new(variable.shape, variable.width)
        t.op(name, (x,), y, over=over)
        return y

    first = _chain(t, new("first moment", gradient), 1)
    second = _chain(t, new("second moment", gradient, [gradient]), 2)
    ready = _assigned(t, first), _assigned(t, second)
    above = new("numerator", ready[0])
    below = _chain(t, new("denominator", ready[1]), 1)
    quotient = t.new(variable.shape, variable.width)
    t.op("quotient", (above, below), quotient, over=(above, below))
    _assigned(t, quotient)


def _chain(t: Tape, x: ProgramTensor, length: int) -> ProgramTensor:
    for _ in range(length):
        y = t.new(x.shape, x.width)
        t.op("update", (x,), y, over=(x,))
        x = y
    return x


def _assigned(t: Tape, x: ProgramTensor) -> ProgramTensor:
    token, read = t.new((0,), 1), t.new((0,), 1)
    t.op("assign", (x,), token)
    t.op("read", (token,), read)
    return read


def update_at_once(
    tape: Tape, optimizer: Optimizer, gradients: Sequence[ProgramTensor]
) -> None:
    """Record torch's update, which runs on lists of all variables."""
    sizes = [gradient.nbytes for gradient in gradients]
    copies = _LISTS.get(type(inner_optimizer(optimizer)).__name__)
    at_once = max(sizes, default=0) * _ONE_BY_ONE
    nbytes = at_once if copies is None else sum(sizes) * copies
    tape.op("update", gradients, tape.new((nbytes,), 1))
