"""Train functions that recover from out-of-memory errors during `fit`."""

from abc import ABC, abstractmethod
from contextlib import ExitStack
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import keras

from kerasmem import backends
from kerasmem.backends.exhaustion import RefusalLog
from kerasmem.backends.steps import Step, Steps, build_for
from kerasmem.errors import ConfigError, OutOfMemoryError
from kerasmem.memory.estimate.inputs import lengths_in
from kerasmem.memory.fit.coupling import CouplingCheck
from kerasmem.memory.fit.losses import LossFactors
from kerasmem.memory.fit.notices import Notices
from kerasmem.memory.fit.parts import MicroBatches, Parts
from kerasmem.memory.fit.plan import (
    MicroBatchPlan,
    PlannedStep,
    Rollback,
    SafeShapes,
    example,
    micro_batches,
)
from kerasmem.memory.oom import StepContext, classify, out_of_memory_error, post_mortem
from kerasmem.memory.plan import plan_of
from kerasmem.records import TORN, Cause, PostMortem, Remedy
from kerasmem.types import Model, Tensors
from kerasmem.units import format_bytes

_END = object()


@dataclass(frozen=True, kw_only=True)
class FitContext:
    """Objects shared by the steps of one `fit`.

    Args:
        limit_bytes: Memory limit of the device in bytes, `None` if unknown.
        limit_is_given: Whether the user passed the limit.
        splits: Whether batches may be split.
        notices: Issues warnings.
        refusals: Failed allocations recorded by the allocators.
        factors: Scales the losses of parts.
        coupling: Detects models whose batches cannot be split.
    """

    limit_bytes: int | None
    limit_is_given: bool
    splits: bool
    notices: Notices
    refusals: RefusalLog
    factors: LossFactors
    coupling: CouplingCheck


class SurvivingStep(ABC):
    """Calls a step function with one batch at a time.

    If a step runs out of memory, the model is restored, and the same batch is repeated
    in smaller parts.

    Attributes:
        whole: The step function built by Keras. Must be set before the first call.
    """

    def __init__(self, model: Model, steps: Steps, context: FitContext) -> None:
        self.whole: Step = _not_set
        self._model = model
        self._steps = steps
        self._context = context
        self._plan = MicroBatchPlan()
        self._rollback = Rollback(steps)
        self._parts: Parts | None = None
        self._safe = SafeShapes()
        self._process, self._processes = backends.current().processes(model)
        self._largest = 0
        self._epoch: int | None = None
        self._step = 0

    def __call__(self, *arguments: Any) -> Any:
        """Run `steps_per_execution` steps and return the result that Keras expects."""
        state, batches = self._steps.unpack(arguments)
        logs: Any = _END
        for _ in range(self._model.steps_per_execution):
            batch = self._next(batches, state)
            if batch is _END:
                break
            logs, state = self._survived(state, batch)
            self._step += 1
        if logs is _END:
            raise StopIteration
        return self._steps.pack(logs, state)

    def end(self) -> None:
        """Free the memory of the steps."""
        self._rollback.drop()
        if self._parts is not None:
            self._parts.release()

    @abstractmethod
    def _meet(self, state: Any, batch: Tensors, size: int) -> None:
        """Prepare for a batch that is larger than all earlier batches."""

    @abstractmethod
    def _new_parts(self) -> Parts:
        """Create the object that runs batches in parts."""

    @abstractmethod
    def _step_context(self, failed: StepContext) -> StepContext:
        """Complete the context of a failed step."""

    @abstractmethod
    def _notify(self, report: PostMortem, parts: int, lost: int) -> None:
        """Warn that memory ran out and the batch is repeated."""

    def _next(self, batches: Any, state: Any) -> Any:
        try:
            return next(batches, _END)
        except Exception as error:
            cause = self._cause(error, "input")
            if cause is None:
                raise
        self._steps.give_up(state)
        raise self._error(cause, state, self._largest or 1, 1)

    def _survived(self, state: Any, batch: Tensors) -> tuple[Any, Any]:
        size = self._steps.size(batch)
        if size > self._largest:
            self._largest = size
            self._prepare(state, batch, size)
        shape = self._steps.shape(batch)
        while True:
            parts = self._plan.parts(size)
            is_new = not self._safe.covers(parts, shape)
            try:
                state = self._arranged(state)
                self._rollback.keep(state, now=is_new)
                logs, new_state = self._run(state, batch, parts)
                if is_new:
                    self._steps.wait(logs, new_state)
            except BaseException as error:
                cause = self._cause(error, "unknown")
                if cause is None:
                    self._abandon(state)
                    raise
            else:
                if is_new:
                    self._safe.note(parts, shape)
                return logs, new_state
            # At this point the error and the frames of its traceback are freed.
            state = self._recovered(cause, state, batch, parts)

    def _prepare(self, state: Any, batch: Tensors, size: int) -> None:
        try:
            self._meet(state, batch, size)
        except BaseException:
            self._steps.give_up(state)  # On JAX, the model has no values until then.
            raise
        self._context.factors.install()

    def _abandon(self, state: Any) -> None:
        if state is not None and not self._steps.is_intact(state):
            # On JAX, the step consumed the only other copy of the state.
            self._steps.give_up(self._rollback.back(state))

    def _run(self, state: Any, batch: Tensors, parts: int) -> tuple[Any, Any]:
        if self._parts is not None and self._parts.is_open:
            return self._parts.run(state, batch, parts)
        return self._steps.run(self._whole, state, batch)

    @property
    def _whole(self) -> Step:
        """The step function for a whole batch."""
        return self.whole

    def _arranged(self, state: Any) -> Any:
        is_split = self._plan.most is not None
        if self._parts is None and is_split:
            self._parts = self._new_parts()
        if self._parts is None or self._parts.is_open == is_split:
            return state
        return self._parts.open(state) if is_split else self._parts.close(state)

    def _recovered(self, cause: Cause, state: Any, batch: Tensors, parts: int) -> Any:
        size = self._steps.size(batch)
        self._steps.free()
        if not self._steps.survives_failure:
            raise self._error(cause, state, size, parts, TORN)
        steps_lost = 0
        if not self._steps.is_intact(state):
            steps_lost = self._rollback.age
            state = self._rollback.back(state)
        if self._parts is not None and self._parts.is_open:
            state = self._parts.close(state)
        can_split = self._can_split(cause, size, parts)
        can_split = can_split and not self._whole_for(state, batch, size // 2 // parts)
        error = self._error(cause, state, size, parts)
        if not can_split:
            self._steps.give_up(state)
            raise error
        fewest = error.post_mortem.fitting_micro_batches or 0
        more = min(size, fewest if fewest > parts else 2 * parts)
        self._plan.fail(size, more)
        self._notify(error.post_mortem, more, steps_lost)
        return state

    def _can_split(self, cause: Cause, size: int, parts: int) -> bool:
        return (
            self._context.splits
            and parts < size
            and cause.kind != "host"
            # Other processes would not split the batch, and all would deadlock.
            and self._processes == 1
        )

    def _whole_for(self, state: Any, batch: Tensors, most: int) -> Remedy | None:
        find_cause = partial(self._cause, phase="unknown")
        check = self._context.coupling
        return check.run(self._steps, state, batch, most, find_cause)

    def _forget_parts(self) -> None:
        if self._parts is not None:
            self._parts.release()
            self._parts = None
            self._safe = SafeShapes()

    def _cause(self, error: BaseException, phase: str) -> Cause | None:
        refusals = self._context.refusals
        return classify(error, self._model, phase=phase, refusals=refusals)

    def _error(
        self,
        cause: Cause,
        state: Any,
        size: int,
        parts: int,
        kind: str | None = None,
    ) -> OutOfMemoryError:
        context = StepContext(
            batch_size=size,
            micro_batches=parts,
            epoch=self._epoch,
            limit_bytes=self._context.limit_bytes,
            process=self._process,
        )
        with self._steps.values(state):
            report = post_mortem(self._model, cause, self._step_context(context))
        report = self._context.coupling.as_a_whole(report)
        self._context.notices.write(report)
        return out_of_memory_error(report, kind)


def _not_set(*_: Any) -> Any:
    raise RuntimeError("SurvivingStep.whole is not set")


class SurvivingTraining(SurvivingStep):
    """Trains with one batch at a time, see `SurvivingStep` and `MicroBatches`."""

    def __init__(self, model: Model, training: Steps, context: FitContext) -> None:
        super().__init__(model, training, context)
        self._training = training
        self._trained_by: Any = None
        self._input_shape: Any | None = None
        self._by_plan = PlannedStep(model, training, context.notices)
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
        if own_plan is not None and context.splits and own_plan.micro_batches > 1:
            parts = own_plan.micro_batches * len(self._steps.on_replicas(batch))
            most = -(-own_plan.batch_size // parts)
            self._foresee(state, batch, most, by_plan=True)
        must_fit = context.limit_is_given and not context.splits
        if context.limit_bytes is None or not (context.splits or must_fit):
            return
        try:
            with self._steps.values(state):
                parts = self._estimated_parts(batch, size, context.limit_bytes)
        except Exception as error:  # noqa: BLE001 - training works without an estimate
            limit_bytes = context.limit_bytes if context.limit_is_given else None
            context.notices.not_estimated(error, limit_bytes)
            return
        if parts != 1 and self._train_by_plan(state, batch, size):
            return
        if parts is None and context.limit_is_given:
            least = f", from {format_bytes(self._lowest)}" if self._lowest else ""
            raise ConfigError(
                "A single sample is estimated not to fit into the limit. Expected: a "
                f"larger limit{least}, or None for the limit of the device. Received: "
                f"memory_limit={format_bytes(context.limit_bytes)}."
            )
        if must_fit and parts != 1:
            raise ConfigError(
                f"A batch of {size} is estimated not to fit into the limit, and "
                "on_oom='raise' does not split it. Received: memory_limit="
                f"{format_bytes(context.limit_bytes)}. Next: pass a smaller "
                "batch_size, or on_oom='split'."
            )
        if parts is not None and parts > 1:
            self._foresee(state, batch, -(-size // parts))

    def _train_by_plan(self, state: Any, batch: Tensors, size: int) -> bool:
        """Apply the fastest plan within the limit if it changes the activations."""
        context, steps = self._context, self._steps
        half = -(-size // 2)
        splits = context.splits and self._whole_for(state, batch, half) is None
        limit_bytes, replicas = context.limit_bytes or 0, len(steps.on_replicas(batch))
        with steps.values(state):
            plan, self._lowest = self._by_plan.choose(
                size * replicas, limit_bytes, self._input_shape, splits=splits
            )
            if plan is None:
                return False
            parts = plan.micro_batches
            if not steps.survives_failure:
                estimate = self._estimated_parts(batch, size, limit_bytes)
                parts = max(parts, estimate or size)
        if parts > 1 and not splits:
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

    def _foresee(self, state: Any, batch: Tensors, most: int, **why: bool) -> None:
        size, context = self._steps.size(batch), self._context
        remedy = self._whole_for(state, batch, most)
        if remedy is None:
            self._plan.foresee(most)
            context.notices.foreseen(self._model, size, self._plan.parts(size), **why)
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
