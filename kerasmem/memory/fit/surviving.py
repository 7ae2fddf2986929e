"""Train functions that recover from out-of-memory errors during `fit`."""

from abc import ABC, abstractmethod
from dataclasses import dataclass
from functools import partial
from typing import Any

from kerasmem import backends
from kerasmem.backends.exhaustion import RefusalLog
from kerasmem.backends.steps import Step, Steps
from kerasmem.errors import OutOfMemoryError
from kerasmem.memory.fit.coupling import CouplingCheck
from kerasmem.memory.fit.losses import LossFactors
from kerasmem.memory.fit.notices import Notices
from kerasmem.memory.fit.parts import Parts
from kerasmem.memory.fit.plan import (
    MicroBatchPlan,
    Rollback,
    SafeShapes,
)
from kerasmem.memory.oom import StepContext, classify, out_of_memory_error, post_mortem
from kerasmem.records import TORN, Cause, PostMortem, Remedy
from kerasmem.types import Model, Tensors

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
