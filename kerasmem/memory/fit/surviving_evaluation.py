"""What stands in for a model's test function while `fit` validates."""

from dataclasses import replace
from typing import Any

from kerasmem.backends.training import Step
from kerasmem.memory.fit.evaluation_parts import EvaluationParts
from kerasmem.memory.fit.surviving_step import Circumstances, SurvivingStep
from kerasmem.memory.oom import Moment
from kerasmem.records import PostMortem


class SurvivingEvaluation(SurvivingStep):
    """Calls a model's test function, see `SurvivingStep` and `EvaluationParts`.

    Args:
        model: the compiled model.
        evaluation: how it is evaluated.
        circumstances: what its steps share with others of this `fit`.
    """

    def __init__(
        self, model: Any, evaluation: Any, circumstances: Circumstances
    ) -> None:
        super().__init__(model, evaluation, circumstances)
        self._factors = circumstances.factors

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

    def end(self) -> None:
        """Give back what the evaluation took."""
        self._rollback.drop()

    def _meet(self, state: Any, batch: Any, size: int) -> None:
        """Do nothing: it takes less than the training that has just run."""

    def _made_parts(self) -> EvaluationParts:
        return EvaluationParts(self._model, self._steps, self._factors)

    def _moment(self, moment: Moment) -> Moment:
        return replace(moment, training=False, accumulates=False)

    def _tell(self, found: PostMortem, parts: int, lost: int) -> None:
        self._teller.failed_evaluation(found, parts, lost)
