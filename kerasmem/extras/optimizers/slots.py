"""Base class of optimizers with one slot object per variable."""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import keras

from kerasmem.types import Variable

AddSlot = Callable[..., Any]
"""Function that creates a slot from name, shape and dtype (default: float32)."""


class SlotOptimizer(keras.optimizers.Optimizer):
    """Optimizer that creates one slot object per variable."""

    def build(self, variables: Sequence[Any]) -> None:
        """Create the slots of the trainable variables."""
        if self.built:
            return
        super().build(variables)
        self._slots = [
            # Float8 training assigns the gradient to such a variable.
            None
            if getattr(variable, "overwrite_with_gradient", False)
            else self._slots_of(variable, partial(self._add_slot, path_of(variable)))
            for variable in variables
        ]

    def _slots_of(self, variable: Variable, add_slot: AddSlot) -> Any:
        raise NotImplementedError

    def _add_slot(
        self, path: str, name: str, shape: Sequence[int], dtype: str = "float32"
    ) -> Any:
        # Same names as the slots of Keras.
        name = f"{path.replace('/', '_')}_{name}"
        return self.add_variable(shape=shape, dtype=dtype, name=name)


def path_of(variable: Variable) -> str:
    """Return the path of a variable, or the name of a `tf.Variable`."""
    return getattr(variable, "path", variable.name)
