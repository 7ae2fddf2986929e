"""Optimizers that keep the slots of each variable in an object of its own."""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import keras

from kerasmem.types import Variable

AddSlot = Callable[..., Any]
"""Makes a slot of a variable from a name, a shape and a dtype, float32 if left out."""


class SlotOptimizer(keras.optimizers.Optimizer):
    """An optimizer that makes an object for each variable when it is built."""

    def build(self, variables: Sequence[Any]) -> None:
        """Make the slots of the variables to train."""
        if self.built:
            return
        super().build(variables)
        self._slots = [
            # float8 training sets such a variable to its gradient.
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
        # Named as Keras names the slots of a variable.
        name = f"{path.replace('/', '_')}_{name}"
        return self.add_variable(shape=shape, dtype=dtype, name=name)


def path_of(variable: Variable) -> str:
    """Return the path of a variable, the name of a bare `tf.Variable`."""
    return getattr(variable, "path", variable.name)
