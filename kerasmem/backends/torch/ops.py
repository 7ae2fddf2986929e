"""Functions of torch under the names of `keras.ops`, for what runs in every step.

A call of `keras.ops` takes some ten microseconds on torch, longer than what it does to
a few figures.
"""

from collections.abc import Sequence

import torch

isfinite = torch.isfinite
maximum = torch.maximum
ones_like = torch.ones_like
reshape = torch.reshape
sqrt = torch.sqrt
where = torch.where
zeros_like = torch.zeros_like


def cast(x: torch.Tensor, dtype: str) -> torch.Tensor:
    """Return the tensor in another type, such as `"float32"`."""
    return x.to(getattr(torch, dtype))


def concatenate(xs: Sequence[torch.Tensor], axis: int = 0) -> torch.Tensor:
    """Return the tensors one behind the other."""
    return torch.cat(tuple(xs), dim=axis)


def split(
    x: torch.Tensor, indices_or_sections: Sequence[int], axis: int = 0
) -> Sequence[torch.Tensor]:
    """Return the parts of a tensor, cut before each of the indices."""
    return torch.tensor_split(x, tuple(indices_or_sections), dim=axis)


def stack(x: Sequence[torch.Tensor], axis: int = 0) -> torch.Tensor:
    """Return the tensors side by side along a new axis."""
    return torch.stack(tuple(x), dim=axis)


def sum(x: torch.Tensor) -> torch.Tensor:  # noqa: A001 - its name in keras.ops
    """Return the sum of all entries."""
    return torch.sum(x)


def take(x: torch.Tensor, indices: Sequence[int], axis: int) -> torch.Tensor:
    """Return the entries, or rows, with these indices."""
    return torch.index_select(x, axis, torch.tensor(indices, device=x.device))
