"""Weights that the forward pass reads rounded, and everything else as they are."""

import functools
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any

import keras

from kerasmem.compression.quantize.aware.rounding import (
    round_affine,
    round_symmetric,
    round_to_type,
)
from kerasmem.compression.quantize.aware.weight_steps import WeightSteps
from kerasmem.compression.quantize.coding import Coding
from kerasmem.errors import ModelError
from kerasmem.graph.layers import Weight


def rounded(coding: Coding, value: Any, steps: WeightSteps | None = None) -> Any:
    """Return a float32 weight as it is once it was stored, with a gradient.

    Args:
        coding: how it is to be stored.
        value: a float32 tensor.
        steps: between its values; None for those of its largest entries.
    """
    if coding.bits == 16:
        return round_to_type(value, coding.dtype)
    rows, axes = coding.rows(tuple(value.shape)), coding.axes
    if rows is not None:
        value, axes = rows.store(value, keras.ops), (rows.axis,)
    if coding.granularity == "tensor":
        axes = tuple(range(len(value.shape)))
    if steps is None:
        make = round_symmetric if coding.symmetric else round_affine
        value = make(value, axes, coding.bits)
    else:
        value = steps.rounded(value)
    return value if rows is None else rows.restore(value, keras.ops)


class RoundedWeights:
    """Some variables of a model, which a forward pass in `shown()` reads rounded.

    Each is rounded once, when the pass begins: also what a recurrent layer reads in
    every time step. The variables stay what they are for optimizer and checkpoint.

    Args:
        weights: them with how each is to be stored and its steps if it has some, one
            or more.
    """

    def __init__(
        self, weights: Sequence[tuple[Weight, Coding, WeightSteps | None]]
    ) -> None:
        self._variables = [weight.variable for weight, *_ in weights]
        with ExitStack() as undo:
            for weight, coding, steps in weights:
                undo.callback(_become_rounded(weight, coding, steps))
            self._undo = undo.pop_all()

    @contextmanager
    def shown(self) -> Iterator[None]:
        """Return a scope in which whoever reads the variables gets rounded values."""
        try:
            for variable in self._variables:
                variable.show()
            yield
        finally:
            for variable in self._variables:
                variable.hide()

    def are_shown(self) -> bool:
        """Return whether this thread is in a forward pass in `shown()`."""
        return id(self._variables[0]) in _SHOWN.values

    def release(self) -> None:
        """Make the variables plain ones again; a second call is a no-op."""
        self._undo.close()


class _Shown(threading.local):
    """What stands for variables in a forward pass of this thread, by their id.

    None is for one that is read as it is for a while. Replicas of a model run their
    passes in threads of their own, turn by turn.
    """

    def __init__(self) -> None:
        self.values: dict[int, Any] = {}


_SHOWN = _Shown()


class RoundedVariable(keras.Variable):
    """What a variable's class becomes; see `RoundedWeights`."""

    _kerasmem_coding: Coding
    _kerasmem_steps: WeightSteps | None
    _kerasmem_path: str

    @property
    def value(self) -> Any:
        """The weight: rounded where it is shown so, else as it is."""
        shown = _SHOWN.values.get(id(self))
        return super().value if shown is None else self._maybe_autocast(shown)

    def show(self) -> None:
        """Have the weight read rounded, as it is now, from now on."""
        self.hide()
        value = self._uncast()
        exact = keras.ops.cast(value, "float32")
        stored = rounded(self._kerasmem_coding, exact, self._kerasmem_steps)
        _SHOWN.values[id(self)] = keras.ops.cast(stored, value.dtype)

    def hide(self) -> None:
        """Have the weight read as it is again."""
        _SHOWN.values.pop(id(self), None)

    @contextmanager
    def seen(self, *, rounded: bool) -> Iterator[None]:
        """Return a scope in a forward pass that reads the weight so.

        Outside of a pass nothing changes.
        """
        values, key = _SHOWN.values, id(self)
        if key not in values:
            yield
            return
        before = values[key]
        if rounded:
            self.show()
        else:
            values[key] = None
        try:
            yield
        finally:
            values[key] = before

    def assign(self, value: Any) -> Any:
        """Replace the weight.

        Raises:
            ModelError: where it is read rounded: what replaces it was made of that.
        """
        if _SHOWN.values.get(id(self)) is not None:
            raise ModelError(
                "A weight that training reads rounded stays float. Received: a layer "
                f"that assigns {self._kerasmem_path!r} in its forward pass. Next: "
                f"exclude it, with Quantize(..., exclude={self._kerasmem_path!r})."
            )
        return super().assign(value)

    def _uncast(self) -> Any:
        """Return the weight in its own precision, whatever its layer computes in."""
        autocast, self._autocast = self._autocast, False
        try:
            return keras.ops.convert_to_tensor(super().value)
        finally:
            self._autocast = autocast


def _become_rounded(
    weight: Weight, coding: Coding, steps: WeightSteps | None
) -> Callable[[], None]:
    variable, plain = weight.variable, type(weight.variable)
    # Past `__setattr__` of the framework, which may track what is set there.
    object.__setattr__(variable, "_kerasmem_coding", coding)
    object.__setattr__(variable, "_kerasmem_steps", steps)
    object.__setattr__(variable, "_kerasmem_path", weight.path)
    object.__setattr__(variable, "__class__", _rounded_class(plain))

    def undo() -> None:
        object.__setattr__(variable, "__class__", plain)
        del variable._kerasmem_coding, variable._kerasmem_steps
        del variable._kerasmem_path

    return undo


@functools.cache
def _rounded_class(plain: type) -> type:
    return type(f"Rounded{plain.__name__}", (RoundedVariable, plain), {})
