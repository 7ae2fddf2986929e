"""Torch's variables: those of a step, and such that had no value."""

from typing import Any

import numpy as np
import torch

from kerasmem.backends.lazy import LazyValues
from kerasmem.backends.variables import StepState, VariableBackend, hidden_variable
from kerasmem.types import Optimizer, Tensor, Variable

_INTEGERS = {2: torch.int16, 4: torch.int32, 8: torch.int64}


class TorchLazyValues(LazyValues):
    """A tensor of torch lies where an array does, over the file itself.

    Every layer keeps a table of the parameters inside of it, so that the parameter has
    to be there first, of one number, and to stay the same one.
    """

    adopts = True

    def placeholder(self, variable: Variable) -> Any:
        """Return one number, which is seen in all places."""
        dtype = getattr(torch, variable._dtype)
        return torch.zeros((), dtype=dtype).expand(variable._shape)

    def described(self, shape: tuple[int, ...], dtype: str) -> Any:
        """Return a tensor without memory; the placeholder mostly takes its part."""
        return torch.empty(shape, dtype=getattr(torch, dtype), device="meta")

    def fill(self, variable: Variable, value: Any) -> None:
        """Let the parameter have the value."""
        vars(variable)["_value"].data = self.lend(variable, value).data

    def lend(self, variable: Variable, array: Any) -> Any:
        """Return another parameter, over the file; it outlives what is lent next."""
        tensor = _shared(array) if isinstance(array, np.ndarray) else array.detach()
        own = vars(variable)["_value"]
        tensor = tensor.to(own.device, own.dtype)
        return torch.nn.Parameter(tensor, requires_grad=False)


class TorchVariables(VariableBackend):
    """What torch makes of variables."""

    lazy_values = TorchLazyValues

    def step_state(
        self, optimizer: Optimizer, value: np.ndarray, name: str, like: Any = None
    ) -> StepState:
        """Return a variable outside of the model."""
        return StepState(hidden_variable(value, name), _to_numpy)

    def masked(self, value: Any, mask: Tensor) -> Any:
        """Overwrite `value` with zeros where `mask` is False, and return it."""
        # In place: a new tensor that the variable then copies takes several times as
        # long. By bits, because a product keeps NaN and makes -0.0.
        bits = value.detach().view(_INTEGERS[value.element_size()])
        bits.bitwise_and_(mask.view(torch.int8).neg())
        return value


def _shared(array: np.ndarray) -> torch.Tensor:
    if array.dtype.name == "bfloat16":  # torch knows it, but not as NumPy's
        return torch.from_numpy(array.view(np.int16)).view(torch.bfloat16)
    return torch.from_numpy(array)


def _to_numpy(parameter: torch.Tensor) -> np.ndarray:
    return parameter.detach().cpu().numpy()
