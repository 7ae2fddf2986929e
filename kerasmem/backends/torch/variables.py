"""Torch variables: extra step state and lazy values."""

from typing import Any

import numpy as np
import torch

from kerasmem.backends.lazy import LazyValues
from kerasmem.backends.variables import StepState, VariableBackend, hidden_variable
from kerasmem.types import Optimizer, Tensor, Variable

_INTEGERS = {2: torch.int16, 4: torch.int32, 8: torch.int64}


class TorchLazyValues(LazyValues):
    """Lazy values as torch tensors over the file.

    Every layer has a table of its parameters. The parameter must therefore exist from
    the start, as a broadcast scalar, and stay the same object.
    """

    adopts = True

    def placeholder(self, variable: Variable) -> Any:
        """Return a broadcast scalar."""
        dtype = getattr(torch, variable._dtype)
        return torch.zeros((), dtype=dtype).expand(variable._shape)

    def described(self, shape: tuple[int, ...], dtype: str) -> Any:
        """Return a meta tensor. The placeholder is used instead in most cases."""
        return torch.empty(shape, dtype=getattr(torch, dtype), device="meta")

    def fill(self, variable: Variable, value: Any) -> None:
        """Assign the value to the parameter."""
        vars(variable)["_value"].data = self.lend(variable, value).data

    def lend(self, variable: Variable, array: Any) -> Any:
        """Return another parameter over the file, which stays valid later."""
        tensor = _shared(array) if isinstance(array, np.ndarray) else array.detach()
        own = vars(variable)["_value"]
        tensor = tensor.to(own.device, own.dtype)
        return torch.nn.Parameter(tensor, requires_grad=False)


class TorchVariables(VariableBackend):
    """Torch variables."""

    lazy_values = TorchLazyValues

    def step_state(
        self, optimizer: Optimizer, value: np.ndarray, name: str, like: Any = None
    ) -> StepState:
        """Return a variable outside of the model."""
        return StepState(hidden_variable(value, name), _to_numpy)

    def masked(self, value: Any, mask: Tensor) -> Any:
        """Set `value` to zero where `mask` is False, in place, and return `value`."""
        # In place, because a copy takes several times as long. Bitwise, because a
        # product keeps NaN and returns -0.0.
        bits = value.detach().view(_INTEGERS[value.element_size()])
        bits.bitwise_and_(mask.view(torch.int8).neg())
        return value


def _shared(array: np.ndarray) -> torch.Tensor:
    if array.dtype.name == "bfloat16":  # `from_numpy` does not support the dtype
        return torch.from_numpy(array.view(np.int16)).view(torch.bfloat16)
    return torch.from_numpy(array)


def _to_numpy(parameter: torch.Tensor) -> np.ndarray:
    return parameter.detach().cpu().numpy()
