"""Pruning on a schedule inside the user's own `fit`.

The progress in the schedule is a fraction of the training, or a number of updates or
epochs.
"""

from collections.abc import Callable
from typing import Any

import keras

from kerasmem.backends import current
from kerasmem.backends.gradients import innermost
from kerasmem.callbacks.attachment import (
    AttachedCallback,
    callbacks_of_fit,
    is_fitting,
)
from kerasmem.callbacks.run_log import warn
from kerasmem.checks import InstanceOf
from kerasmem.compression.prune import CRITERIA, INPUTS, Prune
from kerasmem.compression.prune.gradual import Gradual
from kerasmem.errors import ConfigError, ModelError
from kerasmem.graph.values import to_numpy
from kerasmem.records import WeightChange
from kerasmem.types import Dataset, Logs, Model, Optimizer


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


class _Last(keras.callbacks.Callback):
    """Calls functions at the end of a training, after all other callbacks."""

    def __init__(self, callbacks: list[Any]) -> None:
        super().__init__()
        self._callbacks = callbacks
        self.functions: list[Callable[[], None]] = []

    def on_train_end(self, logs: Logs = None) -> None:
        """Remove this callback from the list and call the functions."""
        self._callbacks.remove(self)
        for function in reversed(self.functions):
            function()


class Pruning(AttachedCallback):
    """A callback that prunes the model on a schedule during training.

    Weights are sparse after every update and therefore in every checkpoint, at any
    position in the list of callbacks. By default, the sparsity rises from 0 to
    `prune.sparsity` over the first half of the training in at most 50 steps. The rise
    is fastest at the start (Zhu and Gupta, "To prune, or not to prune", 2017). The
    model stays a plain Keras model.

    Weights that are zero at the start of `fit` stay zero, so a training can resume from
    its checkpoint. Use `initial_epoch=`, or a schedule in steps, which are counted by
    `optimizer.iterations`.

    | key in `logs` | value |
    |---|---|
    | `sparsity` | current target sparsity of the pruned weights, 0 to 1 |
    | `model_sparsity` | pruned entries as a fraction of all parameters of the model |

    Cost: one byte per pruned weight, and one pass
    over these weights per update. Criteria that use gradients need a float32 per
    weight, and splicing needs another one.

    In a custom training loop, call `set_model`, `on_train_begin`,
    `on_train_batch_begin` before every batch, and `on_train_end`. A schedule in epochs
    also needs `on_epoch_begin`. The default schedule, in fractions of the training,
    needs `set_params({"epochs": 3, "steps": 100})`.

    Args:
        prune: A `Prune` that defines the pruned weights and the schedule.
        data: Samples for the criterion `"wanda"`. Defaults to None.

    Attributes:
        changes: List of `WeightChange` after the last `fit`, one per weight of the
            model: its sparsity, or the reason why it was not pruned.

    Raises:
        ConfigError: If `prune` is not a `Prune` or needs `data`. At the start of `fit`,
            if the schedule never prunes.
        ModelError: At the start of `fit`, if the model has no weights yet or none to
            prune. In a custom loop, if it has no optimizer.

    Example:
        >>> import keras
        >>> model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(5)])
        >>> model.compile("sgd", "mse")
        >>> x, y = keras.ops.ones((8, 4)), keras.ops.ones((8, 5))
        >>> pruning = Pruning(Prune(0.5, include="kernel"))
        >>> history = model.fit(x, y, verbose=0, callbacks=[pruning])
        >>> int((keras.ops.convert_to_numpy(model.layers[0].kernel) == 0).sum())
        10
    """

    def __init__(self, prune: Prune, *, data: Dataset = None) -> None:
        super().__init__()
        rule = InstanceOf(Prune, "a Prune, such as Prune(0.8)")
        rule.check("Pruning", "prune", prune)
        if CRITERIA[prune.criterion] == INPUTS and data is None:
            raise ConfigError(
                f"The criterion {prune.criterion!r} needs samples of the layer inputs. "
                "Pass data=. Received: data=None."
            )
        self.prune = prune
        self.changes: list[WeightChange] = []
        self._data = data
        self._gradual: Gradual | None = None
        self._places: TrainingPlaces | None = None
        self._latest: float | None = None
        self._loop: Loop | None = None

    @property
    def sparsity(self) -> float:
        """Return the current target sparsity."""
        return 0.0 if self._gradual is None else self._gradual.sparsity

    def on_train_begin(self, logs: Logs = None) -> None:
        """Add masks to the weights to prune."""
        model = self.model
        self.detach()
        if not model.built:
            raise ModelError(
                f"The model {model.name!r} has no weights to prune yet. Build it "
                "before fit: call it on a batch, or add an Input."
            )
        self._places = self._latest = None
        self._loop = None if is_fitting(model) else Loop(model, self.params)
        # On JAX, `self.model` copies all weights of the running epoch, which is too
        # slow for every batch.
        self._gradual = Gradual(model, self.prune, self._data, lambda: self.model)
        self.attach(model, self._gradual.release, for_fit=self._loop is None)

    def on_epoch_begin(self, epoch: int, logs: Logs = None) -> None:
        """Start an epoch. In the first one, treat existing zeros as pruned."""
        if self._loop is not None:
            if epoch < 0:  # tfmot's examples pass no valid index
                return
            self._loop.start_epoch(self._places)
        self._places = self._places or self._begin(epoch)
        self._places.start_epoch(epoch)
        self._go_on()

    def on_train_batch_begin(self, batch: int, logs: Logs = None) -> None:
        """Prune further if a pruning step is due."""
        if self._loop is not None:
            batch = self._loop.start_batch(self.prune.schedule.unit)
            self._places = self._places or self._begin(0)
        if self._places is not None:
            self._places.start_batch(batch)
            self._go_on()

    def on_epoch_end(self, epoch: int, logs: Logs = None) -> None:
        """Write the sparsity to `logs`."""
        if self._places is None or self._gradual is None:
            return
        if self._loop is None:
            self._places.end_epoch(None)
            if epoch + 1 == self.params["epochs"]:
                self._go_on(at_end=True)
        if logs is not None:
            logs["sparsity"] = self.sparsity
            logs["model_sparsity"] = self._gradual.model_sparsity()

    def on_train_end(self, logs: Logs = None) -> None:
        """Finish after all other callbacks, which may still change the weights."""
        callbacks = None if self._loop is not None else callbacks_of_fit(self.model)
        if callbacks is None:
            self._finish()
        else:
            # A later callback may restore the weights of an earlier epoch.
            if not isinstance(callbacks[-1], _Last):
                callbacks.append(_Last(callbacks))
            callbacks[-1].functions.append(self._finish)

    def _begin(self, epoch: int) -> TrainingPlaces:
        # Not earlier, because a later callback may have restored a checkpoint.
        params = self.params if self._loop is None else self._loop.params
        places = TrainingPlaces(self.model.optimizer, params)
        places.start_epoch(epoch)
        self._check(places)
        if self._gradual is not None:
            self._gradual.keep_zeros()
        return places

    def _finish(self) -> None:
        gradual = self._gradual
        if gradual is not None and self._attachment is not None:
            gradual.enforce()
            self.changes = gradual.changes()
            if gradual.sparsity < gradual.final_sparsity - 1e-9:
                warn(
                    "Training ended before the pruning schedule: the sparsity is "
                    f"{gradual.sparsity:.3f} instead of {gradual.final_sparsity:.3f}. "
                    "Train longer, or end the schedule of Prune earlier."
                )
        self.detach()

    def _go_on(self, *, at_end: bool = False) -> None:
        gradual, schedule, places = self._gradual, self.prune.schedule, self._places
        if places is None or gradual is None:
            return
        if gradual.waits_for_gradients and not places.has_updated:
            return
        unit = schedule.unit
        place = places.last(unit) if at_end else places.now(unit)
        due = None if place is None else schedule.due(self._latest, place)
        if due is None:
            return
        gradual.go_on(due)
        self._latest = due

    def _check(self, places: TrainingPlaces) -> None:
        schedule, unit = self.prune.schedule, self.prune.schedule.unit
        last = places.last(unit)
        if last is not None and schedule.begin > last:
            raise ConfigError(
                "The schedule of Prune never prunes in this training, which ends at "
                f"{unit} {last:g}. Begin the schedule earlier, or train longer. "
                f"Received: begin={schedule.begin:g}."
            )
        over = schedule.end is not None and places.first_step > schedule.end
        if unit == "step" and over and self._is_dense():
            raise ConfigError(
                "The schedule of Prune ends before this training begins: its steps "
                "are counted by optimizer.iterations. Compile the model again to count "
                f"from 0, or add {places.first_step} to begin and end. Received: "
                f"end={schedule.end:g}, iterations={places.first_step}."
            )

    def _is_dense(self) -> bool:
        gradual = self._gradual
        if gradual is None:
            return False
        return gradual.share_of_zeros() < gradual.final_sparsity / 2
