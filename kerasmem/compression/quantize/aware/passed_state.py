"""What a forward pass reads and assigns on every backend, and no file ever sees."""

from dataclasses import dataclass
from typing import Any

import keras
import numpy as np

from kerasmem.backends import current
from kerasmem.graph.values import to_numpy


class PassedState:
    """A variable that rides with those of a model.

    Args:
        model: the model whose forward pass it is for.
        value: its first value.
        name: its name.

    Attributes:
        variable: to read and assign in the forward pass. Replicas of the model get the
            mean of what each of them assigns.
    """

    def __init__(self, model: Any, value: np.ndarray, name: str) -> None:
        with current().replicating(model):
            self.variable = keras.Variable(
                value,
                dtype=str(value.dtype),
                trainable=False,
                autocast=False,
                aggregation="mean",
                name=f"kerasmem_{name}",
            )
        # On JAX a forward pass is given the variables of its model and gives them back,
        # so it must be one of them. Private: those of a layer's random seeds are the
        # ones that Keras counts there, and neither as weights nor in a file.
        self._seeds = model._seed_generators
        self._rider = Rider(self.variable)
        self._seeds.append(self._rider)

    def read(self) -> np.ndarray:
        """Return the current value; call it between epochs only."""
        return to_numpy(self.variable).copy()

    def release(self) -> None:
        """Take the variable away from the model; a second call is a no-op."""
        self._seeds[:] = [seed for seed in self._seeds if seed is not self._rider]


@dataclass(frozen=True, eq=False)
class Rider:
    """What looks like a generator of random numbers."""

    state: Any
