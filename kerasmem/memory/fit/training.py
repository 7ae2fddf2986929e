"""Train functions of `fit` that plan memory and recover from out-of-memory errors."""

from contextlib import ExitStack
from dataclasses import replace
from typing import Any

import keras

from kerasmem.backends.steps import Step, Steps, build_for
from kerasmem.errors import ConfigError, ModelError, OutOfMemoryError
from kerasmem.memory.estimate.inputs import lengths_in
from kerasmem.memory.fit.parts import MicroBatches
from kerasmem.memory.fit.plan import PlannedStep, example, micro_batches
from kerasmem.memory.fit.surviving import FitContext, SurvivingStep
from kerasmem.memory.oom import StepContext
from kerasmem.memory.plan import plan_of
from kerasmem.records import PostMortem
from kerasmem.types import Model, Tensors
from kerasmem.units import format_bytes


class SurvivingTraining(SurvivingStep):
    """Trains with one batch at a time, see `SurvivingStep` and `MicroBatches`."""

    def __init__(self, model: Model, training: Steps, context: FitContext) -> None:
        super().__init__(model, training, context)
        self._training = training
        self._trained_by: Any = None
        self._input_shape: Any | None = None
        self._by_plan = PlannedStep(model, training)
        self._lowest: int | None = None

    def begin_epoch(self, epoch: int) -> None:
        """Renew the copy of the state at the next step."""
        self._epoch = epoch
        self._rollback.expire()
        self._notice_changes()

    def end(self) -> None:
        """Free the memory of the training."""
        with ExitStack() as undo:
            undo.callback(self._by_plan.undo)
            undo.callback(self._context.factors.remove)
            undo.callback(super().end)

    def error_of(self, error: Exception) -> OutOfMemoryError | None:
        """Return the error to raise for an out-of-memory error outside of steps."""
        cause = self._cause(error, "unknown")
        if cause is not None and cause.kind == "host" and self._epoch is None:
            # Before the first epoch, Keras reads the first batches and removes the
            # frames from the traceback that would show this.
            cause = self._cause(error, "input")
        size = self._largest or 1
        return None if cause is None else self._error(cause, None, size, 1)

    def _meet(self, state: Any, batch: Tensors, size: int) -> None:
        build_for(self._model, batch)
        context, own_plan = self._context, plan_of(self._model)
        if own_plan is not None and own_plan.micro_batches > 1:
            parts = own_plan.micro_batches * len(self._steps.on_replicas(batch))
            most = -(-own_plan.batch_size // parts)
            self._foresee(state, batch, most, by_plan=True)
        is_asked = context.limit_is_given or (context.splits and own_plan is None)
        if context.limit_bytes is None or not is_asked:
            return
        try:
            with self._steps.values(state):
                parts = self._estimated_parts(batch, size, context.limit_bytes)
        except Exception as error:  # noqa: BLE001 - training works without an estimate
            limit_bytes = context.limit_bytes if context.limit_is_given else None
            context.notices.not_estimated(error, limit_bytes)
            return
        is_enough = parts is not None and parts <= self._plan.parts(size)
        if not is_enough and not self._train_by_plan(state, batch, size):
            self._split_or_refuse(state, batch, parts)

    def _split_or_refuse(self, state: Any, batch: Tensors, parts: int | None) -> None:
        """Split a batch by an estimate.

        Raises:
            ConfigError: If the user's limit is exceeded and splitting is not possible.
        """
        size, context = self._steps.size(batch), self._context
        limit = format_bytes(context.limit_bytes or 0)
        least = f", from {format_bytes(self._lowest)}" if self._lowest else ""
        if context.limit_is_given and parts is None:
            raise ConfigError(
                "A single sample is estimated not to fit into the limit. Expected: a "
                f"larger limit{least}, or None for the limit of the device. Received: "
                f"memory_limit={limit}."
            )
        if not context.splits:
            raise ConfigError(
                f"A batch of {size} is estimated not to fit into the limit, and "
                f"on_oom='raise' does not split it. Expected: a larger limit{least}. "
                f"Received: memory_limit={limit}. Next: pass a smaller batch_size, or "
                "on_oom='split'."
            )
        if parts is not None:
            self._foresee(state, batch, -(-size // parts))

    def _train_by_plan(self, state: Any, batch: Tensors, size: int) -> bool:
        """Apply the fastest plan within the limit, if there is one."""
        context, steps = self._context, self._steps
        half = -(-size // 2)
        splits = context.splits and self._whole_for(state, batch, half) is None
        limit_bytes, replicas = context.limit_bytes or 0, len(steps.on_replicas(batch))
        try:
            with steps.values(state):
                plan, self._lowest = self._by_plan.choose(
                    size * replicas, limit_bytes, self._input_shape, splits=splits
                )
                parts = plan.micro_batches if plan else 1
                if plan and not steps.survives_failure:
                    estimate = self._estimated_parts(batch, size, limit_bytes)
                    parts = max(parts, estimate or size)
        except Exception as error:  # noqa: BLE001 - training works without a plan
            self._by_plan.undo()
            # A `ModelError` means that the calls cannot be recorded.
            if not isinstance(error, ModelError):
                context.notices.not_planned(error)
            return False
        if plan is None or (parts > 1 and not splits):
            self._by_plan.undo()
            return False
        self._forget_parts()
        self._by_plan.trace()
        if parts > 1:
            self._plan.foresee(-(-size // parts))
        plan = replace(plan, micro_batches=parts)
        context.notices.planned(self._model, plan, self._process)
        return True

    def _estimated_parts(self, batch: Tensors, size: int, limit: int) -> int | None:
        x, _, _ = keras.utils.unpack_x_y_sample_weight(batch)
        self._input_shape = lengths_in(self._model, x) or None
        return micro_batches(
            self._model,
            size * len(self._steps.on_replicas(batch)),
            limit,
            verify=not self._steps.survives_failure,
            **example(self._model, batch, self._input_shape),
        )

    def _foresee(
        self, state: Any, batch: Tensors, most: int, *, by_plan: bool = False
    ) -> None:
        size, context = self._steps.size(batch), self._context
        remedy = self._whole_for(state, batch, most)
        if remedy is None:
            self._plan.foresee(most)
            parts = self._plan.parts(size)
            context.notices.foreseen(self._model, size, parts, by_plan=by_plan)
        elif context.limit_is_given and context.coupling.coupled:
            raise context.coupling.refusal(remedy, size, context.limit_bytes or 0)
        else:
            context.notices.tried_whole(size, remedy)

    @property
    def _whole(self) -> Step:
        return self._by_plan.function or self.whole

    def _new_parts(self) -> MicroBatches:
        return MicroBatches(self._model, self._training, self._context.factors)

    def _step_context(self, failed: StepContext) -> StepContext:
        return replace(failed, step=self._step, input_shape=self._input_shape)

    def _notify(self, report: PostMortem, parts: int, lost: int) -> None:
        self._context.notices.failed(self._model, report, parts, lost)

    def _notice_changes(self) -> None:
        model = self._model
        parts = (self.whole, model.optimizer, *model.trainable_variables)
        trained_by = tuple(map(id, parts))
        if self._trained_by not in (None, trained_by):
            self._forget_parts()
            self._by_plan.trace()
        self._trained_by = trained_by
