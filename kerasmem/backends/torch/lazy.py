"""Torch's variables that had no value."""

from contextlib import AbstractContextManager, nullcontext
from typing import Any

import numpy as np
import torch


class TorchLazyValues:
    """A tensor of torch lies where an array does, over the file itself.

    Every layer keeps a table of the parameters inside of it, so that the parameter has
    to be there first, over memory that nobody has touched, and to stay the same one.
    """

    adopts = True

    def why_not(self) -> str | None:
        """Return None: they always can."""
        return None

    def placeholder(self, variable: Any) -> Any:
        """Return a tensor whose memory is not touched."""
        return torch.empty(variable._shape, dtype=_dtype(variable))

    def outside_of_traces(self) -> AbstractContextManager[Any]:
        """Return a scope that does nothing."""
        return nullcontext()

    def described(self, shape: tuple[int, ...], dtype: str) -> Any:
        """Return a tensor without memory; the placeholder mostly takes its part."""
        return torch.empty(shape, dtype=getattr(torch, dtype), device="meta")

    def fill(self, variable: Any, value: Any) -> None:
        """Let the parameter have the value."""
        tensor = _shared(value) if isinstance(value, np.ndarray) else value.detach()
        parameter = vars(variable)["_value"]
        parameter.data = tensor.to(parameter.device, parameter.dtype)


def _dtype(variable: Any) -> torch.dtype:
    return getattr(torch, variable._dtype)


def _shared(array: np.ndarray) -> torch.Tensor:
    if array.dtype.name == "bfloat16":  # torch knows it, but not as NumPy's
        return torch.from_numpy(array.view(np.int16)).view(torch.bfloat16)
    return torch.from_numpy(array)
