"""Pruning on a schedule inside the user's own `fit`."""

from collections.abc import Callable
from typing import Any

import keras

from kerasmem.callbacks.attachment import (
    AttachedCallback,
    callbacks_of_fit,
    is_fitting,
)
from kerasmem.callbacks.pruning_places import Loop, TrainingPlaces
from kerasmem.callbacks.run_log import warn
from kerasmem.checks import InstanceOf
from kerasmem.compression.prune import CRITERIA, INPUTS, Prune
from kerasmem.compression.prune.gradual import Gradual
from kerasmem.errors import ConfigError, ModelError
from kerasmem.records import WeightChange
from kerasmem.types import Dataset, Logs


class _Last(keras.callbacks.Callback):
    """Calls functions at the end of a training, behind all other callbacks.

    Args:
        callbacks: The list of callbacks that this one is appended to.

    Attributes:
        functions: The functions, the last of which is called first.
    """

    def __init__(self, callbacks: list[Any]) -> None:
        super().__init__()
        self._callbacks = callbacks
        self.functions: list[Callable[[], None]] = []

    def on_train_end(self, logs: Logs = None) -> None:
        """Leave the list and call the functions."""
        self._callbacks.remove(self)
        for function in reversed(self.functions):
            function()


class Pruning(AttachedCallback):
    """A callback that prunes the model on a schedule while it trains.

    The model stays a plain Keras model throughout.

    Weights are sparse after every update, so in every checkpoint too, wherever among
    the callbacks this one is listed. By default the sparsity rises from 0 to
    `prune.sparsity` over the first half of the training, in at most 50 steps, fast at
    first (Zhu and Gupta, "To prune, or not to prune", 2017). After `fit` nothing is
    left on the model but its zeros.

    What is zero when `fit` begins stays zero, so that a training that was interrupted
    goes on from its checkpoint: with `initial_epoch=`, or a schedule in steps, which
    are those of `optimizer.iterations`.

    | key in `logs` | what it is |
    |---|---|
    | `sparsity` | share of zeros aimed at in the pruned weights, 0 to 1 |
    | `model_sparsity` | share of pruned entries in all parameters of the model |

    Cost: one bit per pruned weight where XLA compiles the step and one byte elsewhere;
    one pass over them per update. Criteria that look at gradients take a float32 per
    weight, splicing another one.

    In a training loop of your own call `set_model`, then `on_train_begin`,
    `on_train_batch_begin` before every batch and `on_train_end`. A schedule in steps
    needs no more, one in epochs `on_epoch_begin` too, one in shares of the training,
    which is the default, `set_params({"epochs": 3, "steps": 100})`.

    Args:
        prune: what to prune and when.
        data: samples, for the criterion `"wanda"`; others need none.

    Attributes:
        changes: every weight of the model after the last `fit`: how sparse it is, or
            why it was left alone.

    Raises:
        ConfigError: if `prune` is no `Prune`, or needs `data`; at the start of `fit`,
            if nothing would ever be pruned in it.
        ModelError: at the start of `fit`, if the model has no weights yet, or none to
            prune; in a loop of your own, if it has no optimizer.

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
                f"The criterion {prune.criterion!r} looks at what goes into layers: "
                "give samples as data=. Received: data=None."
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
        """Return the share of zeros that is aimed at by now."""
        return 0.0 if self._gradual is None else self._gradual.sparsity

    def on_train_begin(self, logs: Logs = None) -> None:
        """Put masks on the weights that are to be pruned."""
        model = self.model
        self.detach()
        if not model.built:
            raise ModelError(
                f"The model {model.name!r} has no weights to prune yet. Build it "
                "before fit: call it on a batch, or give it an Input."
            )
        self._places = self._latest = None
        self._loop = None if is_fitting(model) else Loop(model, self.params)
        # On JAX `self.model` fetches the weights from the running epoch, which takes
        # a while; not in every batch.
        self._gradual = Gradual(model, self.prune, self._data, lambda: self.model)
        self.attach(model, self._gradual.release, for_fit=self._loop is None)

    def on_epoch_begin(self, epoch: int, logs: Logs = None) -> None:
        """Note the epoch; before the first one take what is zero as pruned."""
        if self._loop is not None:
            if epoch < 0:  # tfmot's examples do not tell it
                return
            self._loop.start_epoch(self._places)
        self._places = self._places or self._begin(epoch)
        self._places.start_epoch(epoch)
        self._go_on()

    def on_train_batch_begin(self, batch: int, logs: Logs = None) -> None:
        """Prune further if it is time."""
        if self._loop is not None:
            batch = self._loop.start_batch(self.prune.schedule.unit)
            self._places = self._places or self._begin(0)
        if self._places is not None:
            self._places.start_batch(batch)
            self._go_on()

    def on_epoch_end(self, epoch: int, logs: Logs = None) -> None:
        """Write the sparsity into `logs`."""
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
        """Let go, when all other callbacks have had their last word on the weights."""
        callbacks = None if self._loop is not None else callbacks_of_fit(self.model)
        if callbacks is None:
            self._finish()
        else:
            # A callback behind this one may restore the weights of an earlier epoch.
            if not isinstance(callbacks[-1], _Last):
                callbacks.append(_Last(callbacks))
            callbacks[-1].functions.append(self._finish)

    def _begin(self, epoch: int) -> TrainingPlaces:
        # Not earlier: a callback behind this one may have restored a checkpoint.
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
                    "Training ended before pruning did: the sparsity is "
                    f"{gradual.sparsity:.3f} instead of {gradual.final_sparsity:.3f}. "
                    "Train longer, or let the schedule of Prune end earlier."
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
                f"{unit} {last:g}. Let it begin earlier, or train longer. Received: "
                f"begin={schedule.begin:g}."
            )
        over = schedule.end is not None and places.first_step > schedule.end
        if unit == "step" and over and self._is_dense():
            raise ConfigError(
                "The schedule of Prune is over before this training begins: its steps "
                "are those of optimizer.iterations. Compile the model anew to count "
                f"from 0, or add {places.first_step} to begin and end. Received: "
                f"end={schedule.end:g}, iterations={places.first_step}."
            )

    def _is_dense(self) -> bool:
        gradual = self._gradual
        if gradual is None:
            return False
        return gradual.share_of_zeros() < gradual.final_sparsity / 2
