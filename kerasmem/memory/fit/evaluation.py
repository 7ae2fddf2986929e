"""Test functions that recover from out-of-memory errors during `fit`."""

from dataclasses import replace
from typing import Any

from kerasmem.backends.steps import Step
from kerasmem.memory.fit.parts import EvaluationParts
from kerasmem.memory.fit.surviving import SurvivingStep
from kerasmem.memory.oom import StepContext
from kerasmem.records import PostMortem
from kerasmem.types import Tensors


class SurvivingEvaluation(SurvivingStep):
    """Evaluates one batch at a time, see `SurvivingStep` and `EvaluationParts`."""

    def begin(self, whole: Step, epoch: int | None) -> None:
        """Prepare for one evaluation."""
        if whole is not self.whole:
            self._forget_parts()
        self.whole, self._epoch = whole, epoch
        self._rollback.expire()

    def _meet(self, state: Any, batch: Tensors, size: int) -> None:
        """Do nothing, because an evaluation needs less memory than the training."""

    def _new_parts(self) -> EvaluationParts:
        return EvaluationParts(self._model, self._steps, self._context.factors)

    def _step_context(self, failed: StepContext) -> StepContext:
        return replace(failed, training=False, accumulates=False)

    def _notify(self, report: PostMortem, parts: int, lost: int) -> None:
        self._context.notices.failed_evaluation(report, parts, lost)
