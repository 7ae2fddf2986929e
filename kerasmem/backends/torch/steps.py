"""Torch: a step runs as it is written, and changes the variables."""

import gc
from abc import abstractmethod
from collections.abc import Callable, Sequence
from typing import Any

import torch

from kerasmem.backends.in_place import InPlaceSteps, InPlaceTraining, LocalBatches
from kerasmem.backends.steps import (
    Count,
    GradientSum,
    Part,
    Step,
    changed_by_evaluation,
    changed_by_training,
)


class TorchSteps(InPlaceSteps, LocalBatches):
    """Steps of a model that torch runs."""

    survives_failure: bool = True

    @property
    @abstractmethod
    def step(self) -> Step:
        """The model's own step."""

    def run(self, function: Step, state: Any, batch: Any) -> tuple[Any, Any]:
        """Return logs and state after `function` had one batch."""
        return function([batch]), state

    def wait(self, logs: Any, state: Any) -> None:
        """Wait until the device has done what it was told."""
        if torch.cuda.is_initialized():
            torch.cuda.synchronize()

    def counting(self, count: Count) -> Callable[[Any, Any], Any]:
        """Return a function of state and batch that calls `count`."""

        def counted(state: Any, batch: Any) -> Any:  # noqa: ARG001
            with torch.no_grad():
                return count([], batch)

        return counted

    def free(self) -> None:
        """Give back to the device what nothing holds any more."""
        for variable in self._model.trainable_variables:
            variable.value.grad = None
        gc.collect()
        if torch.cuda.is_initialized():
            torch.cuda.empty_cache()

    def _to_host(self, variable: Any) -> torch.Tensor:
        # Not just `.cpu()`, which copies nothing that is there already.
        return variable.value.detach().to("cpu", copy=True)

    def _put_back(self, variable: Any, value: torch.Tensor) -> None:
        with torch.no_grad():
            variable.value.copy_(value)

    def _to_array(self, count: torch.Tensor) -> Any:
        return count.cpu().numpy()

    def _to_tensors(self, share: Any, factors: Any) -> tuple[Any, Any]:
        return float(share), torch.from_numpy(factors)


class TorchEvaluation(TorchSteps):
    """A model that torch evaluates."""

    @property
    def step(self) -> Step:
        """The model's own step."""
        return self._model.test_step

    def function_of(self, step: Step) -> Step:
        """Return the step as Keras's `evaluate` calls it; it is not compiled."""
        return torch.no_grad()(lambda data: step(data[0]))

    def _changed(self) -> list[Any]:
        return changed_by_evaluation(self._model)


class TorchTraining(TorchSteps, InPlaceTraining):
    """A model that torch trains."""

    @property
    def step(self) -> Step:
        """The model's own step."""
        return self._model.train_step

    def function_of(self, step: Step) -> Step:
        """Return the step as Keras's `fit` calls it; it is not compiled."""
        return lambda data: step(data[0])

    def _changed(self) -> list[Any]:
        return changed_by_training(self._model)

    def _add(
        self, totals: Sequence[GradientSum], gradients: Sequence[Any], part: Part
    ) -> Sequence[Any]:
        for total, gradient in zip(totals, gradients, strict=True):
            if gradient is not None:
                total.value.add_(gradient, alpha=part.share)
                total.is_reached = True
        return [total.value if total.is_reached else None for total in totals]

    def _as_dtype_of(self, variable: Any, total: Any) -> Any:
        return total.to(variable.value.dtype)

    def _clear(self, total: GradientSum) -> None:
        total.value.zero_()
        total.is_reached = False
