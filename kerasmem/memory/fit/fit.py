"""`model.fit` with automatic recovery from out-of-memory errors."""

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
from kerasmem.memory.fit.evaluation import SurvivingEvaluation
from kerasmem.memory.fit.losses import LossFactors
from kerasmem.memory.fit.notices import Notices
from kerasmem.memory.fit.surviving import FitContext
from kerasmem.memory.fit.training import SurvivingTraining
from kerasmem.memory.oom import noting_refusals
from kerasmem.memory.oom.cause import figures_of
from kerasmem.types import Dataset, Model
from kerasmem.units import parse_bytes


class Installation(keras.callbacks.Callback):
    """Callback that replaces the train and test functions during `fit`.

    It is the last callback, because other callbacks may replace the functions when an
    epoch begins.
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
        """Replace the train function."""
        self._training.whole = self.model.train_function
        # No issue known: `fit` of Keras 3.15 calls only the compiled step of the model.
        self.model.train_function = self._training
        self._training.begin_epoch(epoch)
        self._epoch = epoch

    def on_epoch_end(self, epoch: int, logs: dict[str, Any] | None = None) -> None:  # noqa: ARG002
        """Restore the train function."""
        self.take_out()

    def on_test_begin(self, logs: dict[str, Any] | None = None) -> None:  # noqa: ARG002
        """Replace the test function."""
        self._evaluation.begin(self.model.test_function, self._epoch)
        # No issue known: a validation of Keras 3.15 also calls only the compiled step.
        self.model.test_function = self._evaluation

    def on_test_end(self, logs: dict[str, Any] | None = None) -> None:  # noqa: ARG002
        """Restore the test function."""
        self.take_out()

    def take_out(self) -> None:
        """Restore the original functions."""
        model = self.model
        if model is None:
            return
        if model.train_function is self._training:
            model.train_function = self._training.whole
        if model.test_function is self._evaluation:
            model.test_function = self._evaluation.whole
            self._evaluation.end()

    def end(self) -> None:
        """Restore the original functions and free all copies."""
        self.take_out()
        self._training.end()
        self._evaluation.end()


@contextmanager
def installed(
    model: Model, installation: Installation, callbacks: Any
) -> Iterator[Any]:
    """Yield the callbacks for `fit` including `installation`, and clean up."""
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
    """Fit a model, and plan or split batches that do not fit into memory.

    If a memory limit is known and a batch is estimated to exceed it, the step is
    trained by a memory plan: it recomputes activations, stores them in 8 bits or splits
    the batch, whatever is estimated to be fastest. See `plan_memory`. The model itself
    is not changed.

    A batch that is split into micro-batches is followed by one update with the
    gradient of the whole batch. Clipping, weight decay, weight averages, schedules
    and `iterations` are the same as for a whole batch. The same applies to losses,
    metrics, sample weights, masks and callbacks. If a memory limit is known, the number
    of micro-batches is estimated before the first step. If a step runs out of memory,
    the state of the training is restored from a copy on the host. The same batch is
    then repeated in smaller parts.
    Validation steps are split in the same way.

    Differences from whole batches:

    - Activations in 8 bits add unbiased noise to gradients, and a warning is issued.
    - `BatchNormalization` uses the statistics of the parts, and a warning is issued.
    - Dropout draws one mask per part.
    - On TensorFlow, the gradients of repeated tokens in an `Embedding` are added before
      the optimizer squares them, so Adam differs from whole batches.
    - A custom `train_step` must update once, through `model.optimizer`, and return
      metrics.
    - A custom `compute_loss` is assumed to be a mean over the samples.
    - On TensorFlow with `jit_compile`, a failed step cannot be rolled back. Steps near
      the limit are therefore tested in a child process first.

    The cost is one copy of the variables of the model and the optimizer in host memory.
    The copy is renewed before the first steps of each shape and at the start of every
    epoch. In between, it is renewed as long as copies take at most 0.5 % of the time.
    If a later step fails, training continues from the copy. The updates since the copy
    are lost, and a warning contains their number. With masks, every part needs one more
    forward pass.

    Args:
        model: A compiled `keras.Model`.
        x: Input data, as in `model.fit`.
        y: Target data, as in `model.fit`.
        batch_size: Number of samples per batch, as in `model.fit`.
        memory_limit: Memory limit for estimates and plans: an integer of bytes or a
            text such as `"8GiB"`. Defaults to the limit of the device. To enforce a
            limit on a TensorFlow or torch process, use `kerasmem.memory.configure`.
        on_oom: `"split"` or `"raise"`. With `"raise"`, batches are not split. If a step
            runs out of memory, the model is restored and the error is raised. A batch
            that is estimated not to fit into `memory_limit` is an error before its
            first step. Defaults to `"split"`.
        log_dir: Path of a run folder. Each out-of-memory error is appended to
            `post_mortems.jsonl` for `kerasmem report`, and each memory plan to
            `memory_plans.jsonl`. Defaults to `None`.
        fit_arguments: Other arguments of `model.fit`.

    Returns:
        The `keras.callbacks.History` of `model.fit`.

    Raises:
        OutOfMemoryError: If a single sample does not fit, or memory runs out while a
            batch is loaded. With `kind="torn state"`, the failed step has changed the
            model, which cannot be restored. The error contains the post-mortem.
        ConfigError: If an argument is invalid, or a single sample is estimated not to
            fit into `memory_limit`. Also raised for a batch that is estimated not to
            fit: with `on_oom="raise"`, or if its loss compares samples of the batch
            with each other (contrastive).
        ModelError: If the model is not compiled.

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
    if limit_is_given:
        limit = parse_bytes(memory_limit, "fit", "memory_limit")
    else:
        limit = figures_of().limit_bytes
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
            # The error occurred outside of a step: in the first batches or a callback.
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
            f"{type(model).__name__} {getattr(model, 'name', '')!r}. Next: compile the "
            "model."
        )
