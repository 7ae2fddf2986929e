"""The optimizer in the file of a model: what it holds, and one before its first step.

Its slots are in a file that we write all the same: stock Keras warns about one whose
optimizer has none, and zeros deflate to next to nothing. They take no memory where a
variable can be without a value.
"""

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import h5py
import keras
import numpy as np

from kerasmem.backends import current
from kerasmem.backends.lazy import lazy_variables, source_at_rest
from kerasmem.errors import ModelFileError
from kerasmem.files.archive import (
    DAMAGED,
    is_weights_alone,
    opened_weights,
    shards_of,
)
from kerasmem.files.datasets import arrays_in
from kerasmem.files.preset import is_preset, weights_of
from kerasmem.graph.clone import fresh_optimizer

_GROUPS = ("optimizer", "optimizer_weights")  # in a .keras file and in an .h5 file


@dataclass(frozen=True)
class OptimizerState:
    """The variables of an optimizer: its slots, its step counter, its learning rate.

    Args:
        entries: number of their entries, 0 if the file holds none.
        bytes: what they take in RAM.
        is_fresh: whether it has made no step, as in the files that `km.save_model`
            writes: its slots are there, with nothing learned.
    """

    entries: int
    bytes: int
    is_fresh: bool


def optimizer_state(path: str | Path) -> OptimizerState | None:
    """Return what the file of a model holds of its optimizer.

    Returns:
        The state, or None for a file whose weights lie elsewhere than usual, or the
        folder of a SavedModel.

    Raises:
        ModelFileError: if it is damaged.
    """
    path = weights_of(Path(path)) if is_preset(path) else Path(path)
    if path.is_dir():
        return None
    try:
        if h5py.is_hdf5(path) or is_weights_alone(path):
            with ExitStack() as scope:
                shards = (h5py.File(each, "r") for each in shards_of(path))
                return _count([scope.enter_context(each) for each in shards])
        with opened_weights(path) as file:
            return None if file is None else _count([file])
    except DAMAGED as error:
        raise ModelFileError(f"{str(path)!r} is damaged: {error}") from error


def _count(files: list[h5py.File]) -> OptimizerState:
    found = [file.get(name) for file in files for name in _GROUPS]
    groups = [group for group in found if isinstance(group, h5py.Group)]
    arrays = [array for group in groups for array in arrays_in(group).values()]
    counters = [a for a in arrays if a.shape == () and a.dtype.kind in "iu"]
    return OptimizerState(
        entries=sum(array.size for array in arrays),
        bytes=sum(array.nbytes for array in arrays),
        is_fresh=bool(counters) and not any(counter[()] for counter in counters),
    )


@contextmanager
def new_optimizer(model: Any, *, slots: bool) -> Iterator[None]:
    """Return a scope in which a model has its optimizer as before the first step.

    Args:
        model: any model; one that is not compiled is left as it is.
        slots: whether the optimizer has them.

    Raises:
        ModelError: if the optimizer's config does not describe it.
    """
    built_for = [*model.trainable_variables] if slots else None
    if built_for and any(source_at_rest(v) is not None for v in built_for):
        built_for = [*map(_Shape, built_for)]
    values = current().lazy_values()
    is_lazy = values.why_not() is None
    with ExitStack() as scope:
        # What Keras makes later is none of an optimizer.
        with lazy_variables(values, described=True) if is_lazy else nullcontext():
            scope.enter_context(fresh_optimizer(model, built_for=built_for))
        if is_lazy:
            _save_slots_unread(model)
        yield


def _save_slots_unread(model: Any) -> None:
    """Have the new optimizer save its variables, not values that they have not yet."""
    optimizer = model.optimizer if model.compiled else None
    base = keras.optimizers.Optimizer.save_own_variables
    if optimizer is None or type(optimizer).save_own_variables is not base:
        return

    def save_own_variables(store: Any) -> None:
        for number, variable in enumerate(optimizer.variables):
            store[str(number)] = variable

    object.__setattr__(optimizer, save_own_variables.__name__, save_own_variables)


class _Shape:
    """What an optimizer asks of a variable when it makes the slots of it."""

    overwrite_with_gradient = False

    def __init__(self, variable: Any) -> None:
        self.shape, self.dtype = tuple(variable.shape), variable.dtype
        self.name, self.path = variable.name, variable.path
        self.trainable = True
        self.overwrite_with_gradient = getattr(
            variable, "overwrite_with_gradient", False
        )
        self._unique_id = id(self)  # by which TensorFlow's optimizer tells variables

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray:  # noqa: FBT001
        return np.zeros((), dtype or "float32")

    def __jax_array__(self) -> Any:
        return keras.ops.zeros(())
