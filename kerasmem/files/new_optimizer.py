"""An optimizer as it was before the first step, for the file of a model.

Its slots are in the file all the same: stock Keras warns about one whose optimizer has
none, and zeros deflate to next to nothing. They take no memory where a variable can be
without a value.
"""

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, nullcontext
from typing import Any

import keras
import numpy as np

from kerasmem.backends import current
from kerasmem.backends.lazy import lazy_variables
from kerasmem.graph.clone import fresh_optimizer


@contextmanager
def new_optimizer(model: Any, *, slots: bool, described: bool) -> Iterator[None]:
    """Return a scope in which a model has its optimizer as before the first step.

    Args:
        model: any model; one that is not compiled is left as it is.
        slots: whether the optimizer has them.
        described: whether the model's variables have no values.

    Raises:
        ModelError: if the optimizer's config does not describe it.
    """
    built_for = [*model.trainable_variables] if slots else None
    if built_for and described:
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
