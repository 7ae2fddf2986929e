"""The variables that an optimizer will make, told by the optimizer itself.

A fresh copy of the optimizer is built on stand-ins that have the shapes of the model's
variables and none of their memory; what it asks for is written down instead of made.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import keras
import numpy as np

from kerasmem.errors import ModelError


@dataclass(frozen=True)
class Slot:
    """A variable of an optimizer.

    Args:
        name: what it is, such as `"momentum"`.
        variable: path of the model's variable that it belongs to, None for none.
        nbytes: its bytes.
    """

    name: str
    variable: str | None
    nbytes: int


def optimizer_slots(
    optimizer: Any, variables: Sequence[Any], backend: str | None = None
) -> list[Slot]:
    """Return every variable that `optimizer` will have once it trains `variables`.

    The optimizer stays as it is, and no memory is taken for the slots.

    Args:
        optimizer: a `keras.optimizers.Optimizer`, built or not.
        variables: the trainable variables of a model.
        backend: the backend to count for; None for the running one.

    Raises:
        ModelError: if the optimizer's config does not describe it.
    """
    paths = tuple(variable.path for variable in variables)
    ledger = _Ledger(backend or keras.backend.backend(), paths)
    shell = _shell(optimizer, ledger)
    shell.build([_StandIn.of(variable) for variable in variables])
    for variable in shell.variables:
        # The steps are counted in Keras's "int", whose width is the backend's.
        dtype = "int" if variable.name == "iteration" else str(variable.dtype)
        ledger.add(variable.name, None, variable.shape, dtype)
    return ledger.slots


def made_anew(optimizer: Any) -> Any:
    """Return an unbuilt copy of an optimizer.

    Raises:
        ModelError: if the optimizer's config does not describe it.
    """
    try:
        return type(optimizer).from_config(optimizer.get_config())
    except (TypeError, ValueError) as error:
        raise ModelError(
            f"The optimizer {type(optimizer).__name__} cannot be made anew from its "
            f"config: {error}. Expected: a `get_config` that tells its arguments. "
            f"Received: optimizer={optimizer!r}. Next: write one."
        ) from error


@dataclass
class _Ledger:
    backend: str
    paths: tuple[str, ...]
    slots: list[Slot] = field(default_factory=list[Slot])

    def add(
        self, name: str, variable: str | None, shape: Sequence[int], dtype: str | None
    ) -> None:
        if dtype == "int":
            dtype = "int64" if self.backend == "tensorflow" else "int32"
        width = np.dtype(keras.backend.standardize_dtype(dtype)).itemsize
        self.slots.append(Slot(name, variable, math.prod(shape) * width))

    def owner(self, name: str) -> tuple[str, str | None]:
        """Return the short name and the variable of a slot that is named after one."""
        # As Keras names it: `dense_kernel_momentum` for the variable `dense/kernel`.
        prefixes = {f"{path.replace('/', '_')}_": path for path in self.paths}
        fitting = [prefix for prefix in prefixes if name.startswith(prefix)]
        if not fitting:
            return name, None
        longest = max(fitting, key=len)
        return name.removeprefix(longest), prefixes[longest]


class _StandIn:
    """Has the shape of a variable and holds one number."""

    def __init__(self, shape: Sequence[int], dtype: str, name: str, path: str) -> None:
        self.shape, self.dtype = tuple(shape), dtype
        self.name, self.path = name, path
        self.trainable = True
        self.overwrite_with_gradient = False
        self._unique_id = id(self)  # by which the TensorFlow optimizer tells variables

    @classmethod
    def of(cls, variable: Any) -> "_StandIn":
        dtype = keras.backend.standardize_dtype(variable.dtype)
        made = cls(variable.shape, dtype, variable.name, variable.path)
        made.overwrite_with_gradient = getattr(
            variable, "overwrite_with_gradient", False
        )
        return made

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray:  # noqa: FBT001
        return np.zeros((), dtype or "float32")

    def __jax_array__(self) -> Any:
        return keras.ops.zeros(())


def _shell(optimizer: Any, ledger: _Ledger) -> Any:
    """Return an unbuilt copy that writes its slots into `ledger`."""
    if isinstance(optimizer, keras.optimizers.MultiOptimizer):
        return _shell_of_many(optimizer, ledger)
    shell = made_anew(optimizer)
    for part in (shell, getattr(shell, "inner_optimizer", None)):
        if part is not None:
            _record_slots(part, ledger)
    return shell


def _shell_of_many(optimizer: Any, ledger: _Ledger) -> Any:
    # The user's map hands out the user's own optimizers, which must stay unbuilt, and
    # Keras offers no way to the map.
    choose = optimizer._optimizer_map
    shells: dict[int, tuple[Any, Any]] = {}

    def shell_of(chosen: Any) -> Any:
        if id(chosen) not in shells:
            # The chosen one is kept too: its id stands for it.
            shells[id(chosen)] = (chosen, _shell(chosen, ledger))
        return shells[id(chosen)][1]

    def mapped(variable: Any) -> Any:
        return shell_of(choose(variable))

    default = getattr(choose, "default_optimizer", None)
    if default is not None:
        mapped.default_optimizer = shell_of(default)  # pyright: ignore[reportFunctionMemberAccess]
    return type(optimizer)(mapped, loss_scale_factor=optimizer.loss_scale_factor)


def _record_slots(shell: Any, ledger: _Ledger) -> None:
    """Make the optimizer `shell` write down variables instead of making them."""

    def add_variable(
        shape: Sequence[int], *_: Any, dtype: Any = None, name: str = "", **__: Any
    ) -> _StandIn:
        ledger.add(*ledger.owner(name), shape, dtype)
        return _StandIn(shape, keras.backend.standardize_dtype(dtype), name, name)

    def add_variable_from_reference(
        reference_variable: Any, name: str | None = None, **_: Any
    ) -> _StandIn:
        v = reference_variable
        ledger.add(name or "variable", v.path, v.shape, v.dtype)
        return _StandIn(v.shape, v.dtype, name or "variable", f"{v.path}/{name}")

    def assign(*_: Any) -> None:
        """Leave a slot's first value out."""

    for method in (add_variable, add_variable_from_reference, assign):
        # Not `setattr`: that would make Keras track it.
        object.__setattr__(shell, method.__name__, method)
