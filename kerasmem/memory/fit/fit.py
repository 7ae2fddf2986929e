"""`model.fit` that survives out-of-memory."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import keras

from kerasmem import backends
from kerasmem.checks import OneOf
from kerasmem.errors import ModelError
from kerasmem.graph.outputs import warn_if_unfit
from kerasmem.memory.fit.coupling import CouplingCheck
from kerasmem.memory.fit.losses import LossFactors
from kerasmem.memory.fit.notices import Notices
from kerasmem.memory.fit.surviving import (
    FitContext,
    SurvivingEvaluation,
    SurvivingTraining,
)
from kerasmem.memory.oom import noting_refusals
from kerasmem.memory.oom.cause import figures_of
from kerasmem.types import Dataset, Model
from kerasmem.units import parse_bytes


class Installation(keras.callbacks.Callback):
    """Has surviving steps stand in for the functions of epochs and validations.

    It comes last: where an epoch begins other callbacks find the function that Keras or
    they made, and may put another one there.

    Args:
        training: stands in for the training function.
        evaluation: stands in for the test function.
    """

    async_safe = True

    def __init__(
        self, training: SurvivingTraining, evaluation: SurvivingEvaluation
    ) -> None:
        super().__init__()
        self._training = training
        self._evaluation = evaluation
        self._epoch: int | None = None

    def on_epoch_begin(self, epoch: int, logs: dict[str, Any] | None = None) -> None:  # noqa: ARG002
        """Put the training step in."""
        self._training.whole = self.model.train_function
        # No issue known: `fit` of Keras 3.15 runs the compiled step of the model alone.
        self.model.train_function = self._training
        self._training.begin_epoch(epoch)
        self._epoch = epoch

    def on_epoch_end(self, epoch: int, logs: dict[str, Any] | None = None) -> None:  # noqa: ARG002
        """Take it out."""
        self.take_out()

    def on_test_begin(self, logs: dict[str, Any] | None = None) -> None:  # noqa: ARG002
        """Put the step of a validation in."""
        self._evaluation.begin(self.model.test_function, self._epoch)
        # No issue known: likewise for a validation.
        self.model.test_function = self._evaluation

    def on_test_end(self, logs: dict[str, Any] | None = None) -> None:  # noqa: ARG002
        """Take it out."""
        self.take_out()

    def take_out(self) -> None:
        """Put the functions back that were there before."""
        model = self.model
        if model is None:
            return
        if model.train_function is self._training:
            model.train_function = self._training.whole
        if model.test_function is self._evaluation:
            model.test_function = self._evaluation.whole
            self._evaluation.end()

    def end(self) -> None:
        """Leave nothing behind."""
        self.take_out()
        self._training.end()
        self._evaluation.end()


@contextmanager
def installed(
    model: Model, installation: Installation, callbacks: Any
) -> Iterator[Any]:
    """Give the callbacks with which a `fit` uses surviving steps; leave nothing behind.

    Args:
        model: the model.
        installation: has the steps.
        callbacks: what the user gave `fit`.
    """
    try:
        if isinstance(callbacks, keras.callbacks.CallbackList):
            installation.set_model(model)
            callbacks.callbacks.append(installation)
            yield callbacks
        else:
            yield [*keras.tree.flatten(callbacks or []), installation]
    finally:
        if isinstance(callbacks, keras.callbacks.CallbackList):
            callbacks.callbacks.remove(installation)
        installation.end()


ON_OOM = ("split", "raise")


def fit(  # noqa: PLR0913 - the public entry point
    model: Model,
    x: Dataset = None,
    y: Dataset = None,
    *,
    batch_size: int | None = None,
    memory_limit: int | str | None = None,
    on_oom: str = "split",
    log_dir: str | os.PathLike[str] | None = None,
    **fit_arguments: Any,
) -> Any:
    """Fit a model, and go on in smaller parts of a batch when memory runs out.

    A batch that does not fit goes through the model in several parts, but makes one
    update with the gradient of all of it: clipping, weight decay, averages of the
    weights, schedules and `iterations` are as if it had fitted, and so are losses,
    metrics, sample weights, masks and the calls of callbacks. How many parts it takes
    is estimated before the first step where the limit of the device is known or given,
    and found out where a step fails. Then all that training changes is put back to what
    it was before the step, from a copy on the host, and the same batch is tried again
    in smaller parts. Some epochs later larger ones are tried again. Steps of the
    validation that fail go in parts likewise, with the same losses and metrics.

    Not as with the whole batch: `BatchNormalization` sees the statistics of the parts,
    of which a warning tells; dropout draws once per part; on TensorFlow the gradient of
    an `Embedding` is summed up before the optimizer squares it. A `train_step` of your
    own has to update through `model.optimizer`, once, and return metrics; the loss of a
    model with a `compute_loss` of its own is taken for a mean over the samples. On
    TensorFlow with `jit_compile` a step that has failed cannot be made good: there a
    step near the limit is tried in a process of its own first.

    Cost: a copy of the model's and the optimizer's variables in the host's memory. It
    is made before the first steps of each shape, at the start of every epoch, and in
    between as long as that takes no more than half a percent of the time. If a step
    fails of which the like have run before, training goes on from the copy, and the
    updates since are lost; a warning says how many. With masks every part goes through
    the model once more, without gradients.

    Args:
        model: a compiled model.
        x: as in `model.fit`.
        y: as in `model.fit`.
        batch_size: as in `model.fit`.
        memory_limit: bytes or a text such as `"8GiB"`, to estimate for; None for what
            the device has. A TensorFlow or torch process is kept to a limit by
            `kerasmem.memory.configure`.
        on_oom: `"split"` to go on in smaller parts; `"raise"` to split nothing, and to
            raise with the model as it was before the step.
        log_dir: a run's folder, in which every out-of-memory leaves a post-mortem in
            `post_mortems.jsonl`, for `kerasmem report`.
        fit_arguments: the other arguments of `model.fit`.

    Returns:
        The `keras.callbacks.History` that `model.fit` returns.

    Raises:
        OutOfMemoryError: if single samples do not fit, memory ran out while a batch was
            made, or the model cannot be put back (`kind="torn state"`). It carries the
            post-mortem.
        ConfigError: if an argument is wrong, or by the estimate not even one sample
            fits into `memory_limit`, or the batch does not and its loss depends on
            several samples at once.
        ModelError: if the model is not compiled.

    Example:
        >>> model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1)])
        >>> model.compile("sgd", "mse")
        >>> x, y = keras.ops.ones((8, 2)), keras.ops.ones((8, 1))
        >>> sorted(fit(model, x, y, batch_size=4, verbose=0).history)
        ['loss']
    """
    _check(model, on_oom)
    warn_if_unfit(model)
    limit_is_given = memory_limit is not None
    limit = parse_bytes(memory_limit) if limit_is_given else figures_of().limit_bytes
    backend = backends.current()
    notices = Notices(log_dir)
    with noting_refusals() as refusals:
        context = FitContext(
            limit_bytes=limit,
            limit_is_given=limit_is_given,
            splits=on_oom == "split",
            notices=notices,
            refusals=refusals,
            factors=LossFactors(
                model, weighs_batches_alike=backend.weighs_batches_alike(model)
            ),
            coupling=CouplingCheck(model, notices),
        )
        training = SurvivingTraining(model, backend.training(model), context)
        evaluation = SurvivingEvaluation(model, backend.evaluation(model), context)
        installation = Installation(training, evaluation)
        callbacks = fit_arguments.pop("callbacks", None)
        arguments = {"x": x, "y": y, "batch_size": batch_size, **fit_arguments}
        try:
            with installed(model, installation, callbacks) as all_callbacks:
                return model.fit(**arguments, callbacks=all_callbacks)
        except Exception as error:
            # While the first batches are looked at, or in a callback.
            fit_error = training.error_of(error)
            if fit_error is None:
                raise
        raise fit_error


def _check(model: Model, on_oom: str) -> None:
    OneOf(ON_OOM).check("fit", "on_oom", on_oom)
    if not isinstance(model, keras.Model) or not model.compiled:
        raise ModelError(
            "Only a compiled model can be trained. Expected: a keras.Model after "
            "`model.compile(...)`. Received: "
            f"{type(model).__name__} {getattr(model, 'name', '')!r}. Next: compile it."
        )
