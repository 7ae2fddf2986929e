"""What of a function is kept for its backward pass, and what is computed again."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import keras

Function = Callable[..., tuple[Any, ...]]
"""A pure function of tensors in order, which returns a tuple of tensors."""


@dataclass(frozen=True)
class Like:
    """What is known of a tensor that was not kept.

    Args:
        shape: its shape; a length that only the running step knows is a scalar tensor.
        dtype: type of its entries such as `"float32"`.
    """

    shape: tuple[Any, ...]
    dtype: str


class Store(Protocol):
    """How arguments are kept until the backward pass; stateless."""

    def applies_to(self, index: int, tensor: Any) -> bool:
        """Return whether the argument number `index` is kept packed, not as it is."""
        ...

    def pack(self, tensor: Any) -> tuple[Any, ...]:
        """Return the tensors that are kept in its place."""
        ...

    def unpack(self, packed: tuple[Any, ...], like: Like) -> Any:
        """Return the tensor that the gradient is taken at."""
        ...


def kept(
    store: Store | None, tensors: Sequence[Any]
) -> tuple[tuple[Any, ...], Callable[[Sequence[Any]], list[Any]]]:
    """Return what is kept of the arguments, and what makes them of it again.

    Args:
        store: how they are kept; None for as they are.
        tensors: the arguments.
    """
    parts: list[Any] = []
    rules: list[tuple[int, Like | None]] = []
    for index, tensor in enumerate(tensors):
        if store is None or not store.applies_to(index, tensor):
            parts.append(tensor)
            rules.append((1, None))
            continue
        packed = store.pack(tensor)
        dtype = keras.backend.standardize_dtype(tensor.dtype)
        parts.extend(packed)
        rules.append((len(packed), Like(tuple(keras.ops.shape(tensor)), dtype)))

    def restored(late: Sequence[Any]) -> list[Any]:
        arguments: list[Any] = []
        start = 0
        for count, like in rules:
            pieces = tuple(late[start : start + count])
            start += count
            if store is None or like is None:
                arguments.append(pieces[0])
            else:
                arguments.append(store.unpack(pieces, like))
        return arguments

    return tuple(parts), restored
