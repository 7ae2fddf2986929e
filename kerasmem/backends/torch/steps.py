"""Torch training steps, executed eagerly."""

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from typing import Any

import torch

from kerasmem.backends import splitting
from kerasmem.backends.in_place import InPlaceSteps
from kerasmem.backends.steps import BatchPart, Count, GradientSum, Step, StepBackend
from kerasmem.types import Dataset, Logs, Model, Tensors, Variable


class TorchSteps(InPlaceSteps):
    """Steps of a model in torch."""

    def run(self, function: Step, state: Any, batch: Tensors) -> tuple[Any, Any]:
        """Run `function` on one batch and return logs and state."""
        return function([splitting.copy_weights(batch)]), state

    def split(self, batch: Tensors, parts: int) -> list[Any]:
        """Split a batch, with copies of the sample weights as in `run`."""
        return super().split(splitting.copy_weights(batch), parts)

    def wait(self, logs: Logs, state: Any) -> None:
        """Wait for the device."""
        if torch.cuda.is_initialized():
            torch.cuda.synchronize()

    def function_of(self, step: Step) -> Step:
        """Return an uncompiled step with Keras's signature."""

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
        """Free unreferenced device memory."""
        for variable in self._model.trainable_variables:
            variable.value.grad = None
        super().free()
        if torch.cuda.is_initialized():
            torch.cuda.empty_cache()

    def _to_host(self, variable: Variable) -> torch.Tensor:
        # `.cpu()` would not copy a tensor on the CPU.
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
    """Torch functions with the names of `keras.ops`, for use in every step.

    On torch, a call of `keras.ops` takes about ten microseconds, longer than the
    operation on a few values.
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
        """Return the tensor with another dtype, such as `"float32"`."""
        return x.to(getattr(torch, dtype))

    @staticmethod
    def concatenate(xs: Sequence[torch.Tensor], axis: int = 0) -> torch.Tensor:
        """Concatenate tensors."""
        return torch.cat(tuple(xs), dim=axis)

    @staticmethod
    def split(
        x: torch.Tensor, indices_or_sections: Sequence[int], axis: int = 0
    ) -> Sequence[torch.Tensor]:
        """Split a tensor before each of the indices."""
        return torch.tensor_split(x, tuple(indices_or_sections), dim=axis)

    @staticmethod
    def stack(x: Sequence[torch.Tensor], axis: int = 0) -> torch.Tensor:
        """Stack tensors along a new axis."""
        return torch.stack(tuple(x), dim=axis)

    @staticmethod
    def sum(x: torch.Tensor) -> torch.Tensor:
        """Return the sum of all entries."""
        return torch.sum(x)

    @staticmethod
    def take(x: torch.Tensor, indices: Sequence[int], axis: int) -> torch.Tensor:
        """Return the entries or rows at the indices."""
        return torch.index_select(x, axis, torch.tensor(indices, device=x.device))


class TorchStepping(StepBackend):
    """Torch training steps, executed eagerly."""

    runs_eagerly = True
    ops = TorchOps
    steps = TorchSteps

    def traces(self, model: Model) -> int | None:
        """Return None, because torch has no count of traces."""
        return None

    def uncompiled(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """Exclude the function from compilation by Dynamo."""
        disable: Any = torch.compiler.disable
        return disable(function)

    def inference(self) -> AbstractContextManager[Any]:
        """Return a context that records no backward pass."""
        return torch.no_grad()
