"""What stands in for a model's training and test functions while `fit` runs."""

import functools
from dataclasses import replace
from typing import Any

import keras

from kerasmem.backends import device_kind
from kerasmem.backends.steps import Step, Training, build_for
from kerasmem.errors import ConfigError, OutOfMemoryError
from kerasmem.graph.values import held_bytes, nbytes
from kerasmem.memory.batch_size import find_batch_size
from kerasmem.memory.estimate import estimate_memory
from kerasmem.memory.estimate.inputs import lengths_in
from kerasmem.memory.fit.notices import stateful_layers
from kerasmem.memory.fit.parts import EvaluationParts, MicroBatches
from kerasmem.memory.fit.plan import SafeShapes
from kerasmem.memory.fit.surviving_step import FitContext, SurvivingStep
from kerasmem.memory.oom import Moment, Room, fewest_micro_batches
from kerasmem.memory.oom.cause import figures_of
from kerasmem.records import MemoryEstimate, PostMortem
from kerasmem.units import format_bytes

_SAFE = 0.8  # of the limit: XLA asks for what a step needs in one piece, where free
# memory may lie in several


def limit_of_device() -> int | None:
    """Return the most bytes that this process can have of its device, if known."""
    return figures_of().limit_bytes


def micro_batches(
    model: Any,
    batch_size: int,
    limit_bytes: int,
    *,
    verify: bool,
    input_shape: Any | None = None,
) -> int | None:
    """Return into how many parts a batch should go, None if no way is estimated to fit.

    Args:
        model: a compiled model, built.
        batch_size: samples in the batch.
        limit_bytes: most bytes that may be in use.
        verify: whether a failed step could not be made good: then the upper end of the
            estimate counts, and a step near the limit is tried in a child first.
        input_shape: as in `estimate_memory`.
    """
    estimate = functools.cache(
        functools.partial(_estimate, model, is_cautious=verify, input_shape=input_shape)
    )
    room = Room(
        limit_bytes=limit_bytes,
        other_bytes=_other_bytes(model),
        accumulator_bytes=sum(map(nbytes, model.trainable_variables)),
    )
    fitting = fewest_micro_batches(estimate, room, batch_size)
    parts = None if fitting is None else fitting.micro_batches
    is_easy = parts == 1 and fitting and fitting.peak_bytes < _SAFE * limit_bytes
    if not verify or is_easy:
        return parts
    sums = 0 if parts == 1 else room.accumulator_bytes
    left = round(_SAFE * limit_bytes) - room.other_bytes - sums
    largest = -(-batch_size // (parts or batch_size))
    try:
        batch = find_batch_size(model, left, largest=largest, input_shape=input_shape)
    except ConfigError:  # as where this process has the whole card already
        return min(batch_size, 2 * parts) if parts else batch_size
    return -(-batch_size // batch)


def _estimate(
    model: Any, size: int, *, is_cautious: bool, input_shape: Any | None
) -> MemoryEstimate:
    estimate = estimate_memory(
        model, size, device=device_kind(), input_shape=input_shape
    )
    return (
        estimate if is_cautious else replace(estimate, high_bytes=estimate.peak_bytes)
    )


def _other_bytes(model: Any) -> int:
    in_use = figures_of().current_bytes
    if in_use is None:
        return 0
    return max(in_use - held_bytes(model), 0)


class SurvivingTraining(SurvivingStep):
    """Calls a model's training function, see `SurvivingStep` and `MicroBatches`.

    Args:
        model: the compiled model.
        training: how the model is trained.
        context: what its steps share with others of this `fit`.
    """

    def __init__(self, model: Any, training: Training, context: FitContext) -> None:
        super().__init__(model, training, context)
        self._training = training
        self._trained_by: Any = None
        self._input_shape: Any | None = None

    def begin_epoch(self, epoch: int) -> None:
        """Renew the copy to go back to, and see whether to try larger parts again."""
        self._epoch = epoch
        self._rollback.expire()
        self._notice_changes()
        if self._plan.begin_epoch(self._largest):
            self._safe = SafeShapes()

    @property
    def versions(self) -> tuple[Step, ...]:
        """The functions that it calls."""
        return self.whole, *(self._parts.functions if self._parts else ())

    @property
    def latest(self) -> Step:
        """The function of Keras that runs whole batches, else this one."""
        if self._parts is not None and self._parts.is_open:
            return self.__call__
        return getattr(self.whole, "latest", self.whole)

    def end(self) -> None:
        """Give back what the training took."""
        super().end()
        self._context.factors.remove()

    def error_of(self, error: Exception) -> OutOfMemoryError | None:
        """Return what to raise for an error outside of steps, None for another one."""
        cause = self._cause(error, "unknown")
        if cause is not None and cause.kind == "host" and self._epoch is None:
            # Before the first epoch it is Keras that looks at the first batches; the
            # frames that would say so it takes out of the traceback.
            cause = self._cause(error, "input")
        return (
            None if cause is None else self._error(cause, None, self._largest or 1, 1)
        )

    def _meet(self, state: Any, batch: Any, size: int) -> None:
        build_for(self._model, batch)
        context = self._context
        if context.limit_bytes is None or not context.splits:
            return
        try:
            with self._steps.values(state):
                parts = self._estimated_parts(batch, size, context.limit_bytes)
        except Exception as error:  # noqa: BLE001 - the training can go on without
            context.notices.not_estimated(error)
            return
        if parts is None and context.limit_is_given:
            raise ConfigError(
                "By the estimate not even one sample at a time fits into the limit. "
                "Expected: a larger one, or None for what the device has. Received: "
                f"memory_limit={format_bytes(context.limit_bytes)}."
            )
        if parts is not None and parts > 1:
            self._foresee(size, parts)

    def _estimated_parts(self, batch: Any, size: int, limit: int) -> int | None:
        x, _, _ = keras.utils.unpack_x_y_sample_weight(batch)
        self._input_shape = lengths_in(self._model, x) or None
        return micro_batches(
            self._model,
            size,
            limit,
            verify=not self._steps.survives_failure,
            input_shape=self._input_shape,
        )

    def _foresee(self, size: int, parts: int) -> None:
        names = stateful_layers(self._model)
        if names:
            self._context.notices.tried_whole(size, names[0])
            return
        self._plan.foresee(-(-size // parts))
        self._context.notices.foreseen(self._model, size, parts)

    def _new_parts(self) -> MicroBatches:
        return MicroBatches(self._model, self._training, self._context.factors)

    def _moment(self, moment: Moment) -> Moment:
        return replace(moment, step=self._step, input_shape=self._input_shape)

    def _notify(self, report: PostMortem, parts: int, lost: int) -> None:
        self._context.notices.failed(self._model, report, parts, lost)

    def _notice_changes(self) -> None:
        """Begin anew if a callback has made another step, or unfrozen layers."""
        model = self._model
        trained = tuple(map(id, model.trainable_variables))
        trained_by = id(self.whole), id(model.optimizer), trained
        if self._trained_by not in (None, trained_by):
            self._forget_parts()
        self._trained_by = trained_by


class SurvivingEvaluation(SurvivingStep):
    """Calls a model's test function, see `SurvivingStep` and `EvaluationParts`.

    Args:
        model: the compiled model.
        steps: how it is evaluated.
        context: what its steps share with others of this `fit`.
    """

    def begin(self, whole: Step, epoch: int | None) -> None:
        """Get ready for one evaluation.

        Args:
            whole: the function that Keras made.
            epoch: the index of the epoch that it follows.
        """
        if whole is not self.whole:
            self._forget_parts()
        self.whole, self._epoch = whole, epoch
        self._rollback.expire()

    def _meet(self, state: Any, batch: Any, size: int) -> None:
        """Do nothing: it takes less than the training that has just run."""

    def _new_parts(self) -> EvaluationParts:
        return EvaluationParts(self._model, self._steps, self._context.factors)

    def _moment(self, moment: Moment) -> Moment:
        return replace(moment, training=False, accumulates=False)

    def _notify(self, report: PostMortem, parts: int, lost: int) -> None:
        self._context.notices.failed_evaluation(report, parts, lost)
