"""Rematerialization: saved arguments and recomputation in the backward pass."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import keras
from keras import ops

from kerasmem.types import Tensor, Tensors

Function = Callable[..., tuple[Any, ...]]
"""A pure function from tensors to a tuple of tensors."""

Linear = Callable[..., Any]
"""A pure function from tensors to one tensor, linear in its first argument."""


@dataclass(frozen=True)
class Loop:
    """A loop over blocks of a kernel.

    Attributes:
        run: Calls a function with each number below a count and stacks the results.
        block_bytes: Bytes of a block as float32. A block has to fit into the cache.
        most_blocks: Maximum number of blocks, for a loop that is unrolled.
    """

    run: Callable[[Callable[[Any], Any], int], Any]
    block_bytes: int
    most_blocks: int = 1 << 31


@dataclass(frozen=True)
class Like:
    """Shape and dtype of a tensor that was not saved.

    A length that is known only at run time is a scalar tensor.
    """

    shape: tuple[Any, ...]
    dtype: str


class ArgumentStore(Protocol):
    """Stateless storage format of arguments until the backward pass."""

    def applies_to(self, index: int, tensor: Tensor) -> bool:
        """Return whether to pack the argument with this index."""
        ...

    def pack(self, tensor: Tensor) -> tuple[Any, ...]:
        """Return the tensors to save instead of `tensor`."""
        ...

    def unpack(self, packed: tuple[Any, ...], like: Like) -> Any:
        """Return the restored tensor for the gradient."""
        ...


def save_arguments(
    store: ArgumentStore | None, tensors: Sequence[Any]
) -> tuple[tuple[Any, ...], Callable[[Sequence[Any]], list[Any]]]:
    """Return the saved tensors, and a function that restores the arguments."""
    parts: list[Any] = []
    rules: list[tuple[int, Like | None]] = []
    for index, tensor in enumerate(tensors):
        if store is None or not store.applies_to(index, tensor):
            parts.append(tensor)
            rules.append((1, None))
            continue
        pieces_of_one = store.pack(tensor)
        dtype = keras.backend.standardize_dtype(tensor.dtype)
        parts.extend(pieces_of_one)
        rules.append((len(pieces_of_one), Like(tuple(ops.shape(tensor)), dtype)))

    def restore(late: Sequence[Any]) -> list[Any]:
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

    return tuple(parts), restore


def add_dependency(tensors: Sequence[Any], gradient: Tensor) -> list[Any]:
    """Make float tensors depend on a gradient, also in code compiled by XLA.

    XLA ignores control dependencies and barriers. It cannot simplify the added zero,
    because of NaN.
    """
    # Not the first entry, because the gradient may be empty.
    zero = ops.stop_gradient(ops.sum(ops.ravel(gradient)[:1]) * 0)
    zero = ops.where(ops.isfinite(zero), zero, ops.zeros_like(zero))
    return [
        x + ops.cast(zero, x.dtype) if keras.backend.is_float_dtype(x.dtype) else x
        for x in tensors
    ]


class RecomputeBackend(ABC):
    """Rematerialization of functions."""

    @abstractmethod
    def recomputed(
        self,
        function: Function,
        store: ArgumentStore | None = None,
        *,
        compiled: bool = False,
    ) -> Function:
        """Return `function` with a backward pass that saves only the arguments.

        The values are unchanged. Other tensors are recomputed from the saved arguments
        when the output gradient is known. `function` must be pure: variables are passed
        and returned as tensors. `store=None` saves the arguments unchanged.
        """

    @abstractmethod
    def linear(
        self, forward: Linear, transposed: Linear, inputs: Tensors, held: Sequence[Any]
    ) -> Any:
        """Return `forward(inputs, *held)`, saving only `held` for the gradient.

        Tensors that `forward` computes from `held`, such as a float kernel from codes,
        are recomputed in the backward pass. `transposed` computes the gradient of
        `inputs` from the output gradient and `held`. There is no forward-mode
        derivative.
        """

    def after(self, value: Any, other: Any, taken: Callable[[Any], Any]) -> Any:
        """Return `taken(value)`, computed only after `other`.

        A graph runs operations as soon as their inputs exist, and a compiler may move
        cheap ones to the start. Has no effect in eager execution.
        """
        return taken(value)

    def in_loop(
        self,
        looped: Callable[[Loop], Any],
        whole: Callable[[], Any],
        inputs: Tensors,
        *,
        is_packed: bool,
    ) -> Any:
        """Return `looped(loop)` where a loop over blocks is faster, else `whole()`.

        XLA writes a weight that becomes float to main memory, and reads it from there.
        In a loop over blocks that fit into the cache of a CPU it does not.

        Args:
            looped: Returns the outputs, computed in a loop.
            whole: Returns the same outputs without a loop.
            inputs: Tensor that both depend on.
            is_packed: Whether two weights share a byte.
        """
        del looped, inputs, is_packed
        return whole()
