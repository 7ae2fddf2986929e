"""Progress of a training, in fractions of the training, updates and epochs."""

from typing import Any

from kerasmem.backends import current
from kerasmem.backends.gradients import innermost
from kerasmem.errors import ConfigError, ModelError
from kerasmem.graph.values import to_numpy
from kerasmem.types import Model, Optimizer


class TrainingPlaces:
    """Computes the progress of one `fit`, which may continue an earlier training.

    The `iterations` of the optimizer are the steps before this `fit`.
    """

    def __init__(self, optimizer: Optimizer, params: dict[str, Any]) -> None:
        self._epochs: int = params["epochs"]
        self._steps: int | None = params.get("steps")
        inner = innermost(optimizer)
        self._per_update = getattr(inner, "gradient_accumulation_steps", None) or 1
        self.first_step = int(to_numpy(inner.iterations))
        self._epoch = self._first_epoch = 0
        self._batch = self._batches = 0

    def start_epoch(self, epoch: int) -> None:
        """Start an epoch."""
        if not self._batches:
            self._first_epoch = epoch
        self._epoch, self._batch = epoch, 0

    def start_batch(self, batch: int) -> None:
        """Start a batch, or the first of several batches in one execution."""
        self._batches += batch - self._batch
        self._batch = batch

    def end_epoch(self, batches: int | None) -> None:
        """End an epoch after a number of batches, None if unknown."""
        steps = batches if self._steps is None else self._steps
        if steps is not None:
            self.start_batch(steps)

    @property
    def has_updated(self) -> bool:
        """Return whether this `fit` has run a batch."""
        return self._batches > 0

    def now(self, unit: str) -> float | None:
        """Return the current progress, or None if the batches per epoch are unknown."""
        if unit == "step":
            return self.first_step + self._batches // self._per_update
        if self._steps is None and self._batch:
            return None
        epochs = self._epoch + (self._batch / self._steps if self._steps else 0.0)
        return epochs / self._epochs if unit == "share" else epochs

    def last(self, unit: str) -> float | None:
        """Return the progress at the end of the training, or None if unknown."""
        if unit == "share":
            return 1.0
        if unit == "epoch":
            return float(self._epochs)
        if self._steps is None:
            return None
        batches = (self._epochs - self._first_epoch) * self._steps
        return self.first_step + batches // self._per_update


class Loop:
    """Progress of a custom training loop that calls the hooks of a callback.

    Batches are counted, because tfmot's examples pass -1 for every batch and never call
    `on_epoch_begin`. Raises `ModelError` if the model has no optimizer.
    """

    def __init__(self, model: Model, params: dict[str, Any] | None) -> None:
        if getattr(model, "optimizer", None) is None:
            raise ModelError(
                f"The model {model.name!r} has no optimizer to prune with. Next: "
                "call model.compile(optimizer) with the optimizer of the loop first."
            )
        self._optimizer = innermost(model.optimizer)
        self._first_step = int(to_numpy(self._optimizer.iterations))
        settings = params or {}
        self._has_length = "epochs" in settings
        self._has_steps = self._has_length and settings.get("steps") is not None
        self._has_epochs = False
        self._batch = self._batches = 0
        self.params: dict[str, Any] = {"epochs": 1, **settings}

    def start_epoch(self, places: TrainingPlaces | None) -> None:
        """Start an epoch, and store in `places` the length of the one before."""
        if places is not None:
            places.start_batch(self._batch)
        self._has_epochs, self._batch = True, 0

    def start_batch(self, unit: str) -> int:
        """Return the batch index in the epoch, or in the training without epochs.

        Raises `ConfigError` if the progress in the schedule is unknown.
        """
        lacks = {
            "share": not (self._has_length and (self._has_steps or self._has_epochs)),
            "epoch": not (self._has_steps or self._has_epochs),
        }
        if lacks.get(unit):
            raise ConfigError(
                "In a custom training loop, a schedule in shares of the training (the "
                "default) needs the training length: pruning.set_params({'epochs': 3, "
                "'steps': 100}). A schedule in epochs needs on_epoch_begin(epoch). "
                "Next: call these, or use a schedule in steps. Received: a schedule in "
                f"{unit}s."
            )
        self._check_updates()
        self._batches += 1
        self._batch += 1
        return self._batch - 1

    def _check_updates(self) -> None:
        per_update = getattr(self._optimizer, "gradient_accumulation_steps", None) or 1
        if not current().hands_state_on or self._batches != 2 * per_update:
            return
        if int(to_numpy(self._optimizer.iterations)) == self._first_step:
            raise ConfigError(
                "On JAX, the model does not contain the weights of a stateless "
                "training loop, so they cannot be pruned. Next: use fit or "
                "train_on_batch."
            )
