"""The scheduled numbers of losses, as one variable that compiled steps read."""

from collections.abc import Sequence
from typing import Any

import keras
import numpy as np

from kerasmem.compression.distill.losses import DistillationLoss
from kerasmem.compression.distill.schedules import Schedule


class Dials(keras.layers.Layer):
    """Keeps what every schedule of some losses says in this epoch.

    What is no schedule stays a plain number, so that a step without any is as it would
    be without this.

    Args:
        losses: whose fields may be schedules.
    """

    def __init__(self, losses: Sequence[DistillationLoss]) -> None:
        super().__init__(dtype="float32", autocast=False)
        self._schedules = [
            (loss, field, getattr(loss, field))
            for loss in losses
            for field in loss.scheduled
            if isinstance(getattr(loss, field), Schedule)
        ]
        self._values = None
        if self._schedules:
            shape = (len(self._schedules),)
            self._values = self.add_weight(shape=shape, trainable=False, name="dials")
            self.turn(0.0)
        self.built = True

    def turn(self, progress: float) -> None:
        """Set all to what they are at a share of the training, in [0, 1]."""
        if self._values is not None:
            now = [schedule.value(progress) for *_, schedule in self._schedules]
            self._values.assign(np.array(now, "float32"))

    def current(self, loss: DistillationLoss, field: str) -> Any:
        """Return a field of a loss: a number, or a scalar tensor in this epoch."""
        for number, (owner, name, _) in enumerate(self._schedules):
            if owner is loss and name == field and self._values is not None:
                return self._values[number]
        return getattr(loss, field)


class Turning(keras.callbacks.Callback):
    """Turns the dials at the start of every epoch.

    Args:
        dials: what is turned.
        epochs: number of epochs, counted from 0, after which training ends.
    """

    def __init__(self, dials: Dials, epochs: int) -> None:
        super().__init__()
        self._dials = dials
        self._epochs = epochs

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        """Set every schedule to this epoch's value: the last epoch has its end."""
        del logs
        self._dials.turn(epoch / max(self._epochs - 1, 1))
