"""Torch: a step runs as it is written, and changes the variables."""

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from typing import Any

import torch

from kerasmem.backends import splitting
from kerasmem.backends.in_place import InPlaceSteps
from kerasmem.backends.steps import BatchPart, Count, GradientSum, Step, StepBackend
from kerasmem.types import Dataset, Logs, Model, Tensors, Variable


class TorchSteps(InPlaceSteps):
    """Steps of a model that torch runs."""

    def run(self, function: Step, state: Any, batch: Tensors) -> tuple[Any, Any]:
        """Return logs and state after `function` had one batch."""
        return function([splitting.copy_weights(batch)]), state

    def split(self, batch: Tensors, parts: int) -> list[Any]:
        """Return a batch in parts, with copies of the sample weights as in `run`."""
        return super().split(splitting.copy_weights(batch), parts)

    def wait(self, logs: Logs, state: Any) -> None:
        """Wait until the device has done what it was told."""
        if torch.cuda.is_initialized():
            torch.cuda.synchronize()

    def function_of(self, step: Step) -> Step:
        """Return the step as Keras calls it; it is not compiled."""

        def function(data: Dataset) -> Any:
            return step(data[0])

        return function if self._kind == "train" else torch.no_grad()(function)

    def counting(self, count: Count) -> Callable[[Any, Any], Any]:
        """Return a function of state and batch that calls `count`."""

        def counted(state: Any, batch: Tensors) -> Any:  # noqa: ARG001
            with torch.no_grad():
                return count([], batch)

        return counted

    def free(self) -> None:
        """Give back to the device what nothing holds any more."""
        for variable in self._model.trainable_variables:
            variable.value.grad = None
        super().free()
        if torch.cuda.is_initialized():
            torch.cuda.empty_cache()

    def _to_host(self, variable: Variable) -> torch.Tensor:
        # Not just `.cpu()`, which copies nothing that is there already.
        return variable.value.detach().to("cpu", copy=True)

    def _put_back(self, variable: Variable, value: torch.Tensor) -> None:
        with torch.no_grad():
            variable.value.copy_(value)

    def _to_array(self, count: torch.Tensor) -> Any:
        return count.cpu().numpy()

    def _to_tensors(self, share: Any, factors: Any) -> tuple[Any, Any]:
        return float(share), torch.from_numpy(factors)

    def _add(
        self, totals: Sequence[GradientSum], gradients: Sequence[Any], part: BatchPart
    ) -> Sequence[Any]:
        for total, gradient in zip(totals, gradients, strict=True):
            if gradient is not None:
                total.value.add_(gradient, alpha=part.share)
                total.is_reached = True
        return [total.value if total.is_reached else None for total in totals]

    def _clear(self, total: GradientSum) -> None:
        total.value.zero_()
        total.is_reached = False


class TorchOps:
    """Functions of torch under the names of `keras.ops`, for what runs in every step.

    A call of `keras.ops` takes some ten microseconds on torch, longer than what it does
    to a few figures.
    """

    abs = torch.abs
    isfinite = torch.isfinite
    logical_not = torch.logical_not
    max = torch.max
    maximum = torch.maximum
    not_equal = torch.ne
    ones_like = torch.ones_like
    reshape = torch.reshape
    sqrt = torch.sqrt
    square = torch.square
    where = torch.where
    zeros_like = torch.zeros_like

    @staticmethod
    def cast(x: torch.Tensor, dtype: str) -> torch.Tensor:
        """Return the tensor in another type, such as `"float32"`."""
        return x.to(getattr(torch, dtype))

    @staticmethod
    def concatenate(xs: Sequence[torch.Tensor], axis: int = 0) -> torch.Tensor:
        """Return the tensors one behind the other."""
        return torch.cat(tuple(xs), dim=axis)

    @staticmethod
    def split(
        x: torch.Tensor, indices_or_sections: Sequence[int], axis: int = 0
    ) -> Sequence[torch.Tensor]:
        """Return the parts of a tensor, cut before each of the indices."""
        return torch.tensor_split(x, tuple(indices_or_sections), dim=axis)

    @staticmethod
    def stack(x: Sequence[torch.Tensor], axis: int = 0) -> torch.Tensor:
        """Return the tensors side by side along a new axis."""
        return torch.stack(tuple(x), dim=axis)

    @staticmethod
    def sum(x: torch.Tensor) -> torch.Tensor:
        """Return the sum of all entries."""
        return torch.sum(x)

    @staticmethod
    def take(x: torch.Tensor, indices: Sequence[int], axis: int) -> torch.Tensor:
        """Return the entries, or rows, with these indices."""
        return torch.index_select(x, axis, torch.tensor(indices, device=x.device))


class TorchStepping(StepBackend):
    """Torch runs a step as it is written."""

    runs_eagerly = True
    ops = TorchOps
    steps = TorchSteps

    def traces(self, model: Model) -> int | None:
        """Return None: torch runs the step itself, or counts its traces nowhere."""
        return None

    def uncompiled(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """Return the function with an end put before it to what Dynamo compiles."""
        disable: Any = torch.compiler.disable
        return disable(function)

    def inference(self) -> AbstractContextManager[Any]:
        """Return a scope in which no backward pass is recorded."""
        return torch.no_grad()
