"""Weights that the forward pass reads rounded, and everything else as they are."""

import functools
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import keras

from kerasmem.compression.quantize.aware.rounding import (
    round_affine,
    round_symmetric,
    round_to_type,
)
from kerasmem.compression.quantize.coding import Coding


def rounded(coding: Coding, value: Any) -> Any:
    """Return a float32 weight as it is once it was stored, with a gradient.

    Args:
        coding: how it is to be stored.
        value: a float32 tensor.
    """
    if coding.bits == 16:
        return round_to_type(value, coding.dtype)
    rows, axes = coding.rows(tuple(value.shape)), coding.axes
    if rows is not None:
        value, axes = rows.store(value, keras.ops), (rows.axis,)
    if coding.granularity == "tensor":
        axes = tuple(range(len(value.shape)))
    make = round_symmetric if coding.symmetric else round_affine
    value = make(value, axes, coding.bits)
    return value if rows is None else rows.restore(value, keras.ops)


class RoundedWeights:
    """Some variables of a model, which a forward pass in `shown()` reads rounded.

    Each is rounded once, when the pass begins: also what a recurrent layer reads in
    every time step. The variables stay what they are for optimizer and checkpoint.

    Args:
        weights: variables with how each is to be stored.
    """

    def __init__(self, weights: Sequence[tuple[Any, Coding]]) -> None:
        self._variables = [variable for variable, _ in weights]
        self._undo = [_become_rounded(*weight) for weight in weights]

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

    def release(self) -> None:
        """Make the variables plain ones again; a second call is a no-op."""
        while self._undo:
            self._undo.pop()()


class _RoundedVariable(keras.Variable):
    """What a variable's class becomes; see `RoundedWeights`."""

    _kerasmem_coding: Coding
    _kerasmem_shown: Any

    @property
    def value(self) -> Any:
        """The weight: rounded where it is shown so, else as it is."""
        shown = vars(self)["_kerasmem_shown"]
        return super().value if shown is None else self._maybe_autocast(shown)

    def show(self) -> None:
        """Have the weight read rounded, as it is now, from now on."""
        self.hide()
        value = self._uncast()
        exact = rounded(self._kerasmem_coding, keras.ops.cast(value, "float32"))
        _set(self, "_kerasmem_shown", keras.ops.cast(exact, value.dtype))

    def hide(self) -> None:
        """Have the weight read as it is again."""
        _set(self, "_kerasmem_shown", None)

    def assign(self, value: Any) -> Any:
        """Replace the weight, as a layer may do in its forward pass."""
        was_shown = vars(self)["_kerasmem_shown"] is not None
        self.hide()
        value = super().assign(value)
        if was_shown:
            self.show()
        return value

    def _uncast(self) -> Any:
        """Return the weight in its own precision, whatever its layer computes in."""
        autocast, self._autocast = self._autocast, False
        try:
            return keras.ops.convert_to_tensor(super().value)
        finally:
            self._autocast = autocast


def _become_rounded(variable: Any, coding: Coding) -> Callable[[], None]:
    plain = type(variable)
    _set(variable, "_kerasmem_coding", coding)
    _set(variable, "_kerasmem_shown", None)
    _set(variable, "__class__", _rounded_class(plain))

    def undo() -> None:
        _set(variable, "__class__", plain)
        del variable._kerasmem_coding, variable._kerasmem_shown

    return undo


@functools.cache
def _rounded_class(plain: type) -> type:
    return type(f"Rounded{plain.__name__}", (_RoundedVariable, plain), {})


def _set(variable: Any, name: str, value: Any) -> None:
    # Past `__setattr__` of the framework, which may track what is set there.
    object.__setattr__(variable, name, value)
