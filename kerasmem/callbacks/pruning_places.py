"""Where a training stands, counted in shares of it, in updates and in epochs."""

from typing import Any

from kerasmem.backends.gradients import innermost
from kerasmem.graph.values import to_numpy


class Places:
    """Tells the places of one `fit`, which need not be the first of its training.

    Args:
        optimizer: of the model; how many updates it has done so far is where its
            steps go on.
        params: what Keras tells a callback of the `fit`.
    """

    def __init__(self, optimizer: Any, params: dict[str, Any]) -> None:
        self._epochs: int = params["epochs"]
        self._steps: int | None = params.get("steps")
        inner = innermost(optimizer)
        self._per_update = getattr(inner, "gradient_accumulation_steps", None) or 1
        self.first_step = int(to_numpy(inner.iterations))
        self._epoch = self._first_epoch = 0
        self._batch = self._batches = 0

    def start_epoch(self, epoch: int) -> None:
        """Note that an epoch begins."""
        if not self._batches:
            self._first_epoch = epoch
        self._epoch, self._batch = epoch, 0

    def start_batch(self, batch: int) -> None:
        """Note that a batch begins, or the first of several that run at once."""
        self._batches += batch - self._batch
        self._batch = batch

    def end_epoch(self, batches: int | None) -> None:
        """Note that an epoch ended, and after how many batches, if that is known."""
        done = batches if self._steps is None else self._steps
        if done is not None:
            self.start_batch(done)

    @property
    def has_updated(self) -> bool:
        """Return whether this `fit` has run a batch."""
        return self._batches > 0

    def now(self, unit: str, ahead: int = 0) -> float | None:
        """Return where the training is, None where the batches of an epoch are unknown.

        Args:
            unit: `"share"`, `"step"` or `"epoch"`.
            ahead: number of batches from now for where it will be.
        """
        if unit == "step":
            return self.first_step + (self._batches + ahead) // self._per_update
        batch = self._batch + ahead
        if self._steps is None and batch:
            return None
        epochs = self._epoch + (batch / self._steps if self._steps else 0.0)
        return epochs / self._epochs if unit == "share" else epochs

    def last(self, unit: str) -> float | None:
        """Return where the training will end, None if that is not known."""
        if unit == "share":
            return 1.0
        if unit == "epoch":
            return float(self._epochs)
        if self._steps is None:
            return None
        batches = (self._epochs - self._first_epoch) * self._steps
        return self.first_step + batches // self._per_update
