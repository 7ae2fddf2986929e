"""What of a function is kept for its backward pass, and what is computed again."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import keras
from keras import ops

from kerasmem.types import Tensor, Tensors

Function = Callable[..., tuple[Any, ...]]
"""A pure function of tensors in order, which returns a tuple of tensors."""

Loop = Callable[[Callable[[Any], Any], int], Any]
"""Calls a function with each number below a count and stacks the results."""
Linear = Callable[..., Any]
"""A pure function of tensors, linear in the first of them, which returns one tensor."""


@dataclass(frozen=True)
class Like:
    """What is known of a tensor that was not kept.

    Args:
        shape: its shape; a length that only the running step knows is a scalar tensor.
        dtype: type of its entries such as `"float32"`.
    """

    shape: tuple[Any, ...]
    dtype: str


class ArgumentStore(Protocol):
    """How arguments are kept until the backward pass; stateless."""

    def applies_to(self, index: int, tensor: Tensor) -> bool:
        """Return whether the argument number `index` is kept packed, not as it is."""
        ...

    def pack(self, tensor: Tensor) -> tuple[Any, ...]:
        """Return the tensors that are kept in its place."""
        ...

    def unpack(self, packed: tuple[Any, ...], like: Like) -> Any:
        """Return the tensor that the gradient is taken at."""
        ...


def save_arguments(
    store: ArgumentStore | None, tensors: Sequence[Any]
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
    """Return tensors that are not there before a gradient is, where XLA compiles.

    Control dependencies and barriers count for nothing there. No algebra makes nothing
    of this zero, because of what is not a number. Tensors without floats stay as they
    are.
    """
    # Not the first entry: there may be none.
    zero = ops.stop_gradient(ops.sum(ops.ravel(gradient)[:1]) * 0)
    zero = ops.where(ops.isfinite(zero), zero, ops.zeros_like(zero))
    return [
        x + ops.cast(zero, x.dtype) if keras.backend.is_float_dtype(x.dtype) else x
        for x in tensors
    ]


class RecomputeBackend(ABC):
    """Functions whose tensors are computed a second time for the backward pass."""

    @abstractmethod
    def recomputed(
        self,
        function: Function,
        store: ArgumentStore | None = None,
        *,
        compiled: bool = False,
    ) -> Function:
        """Return `function` with a backward pass that keeps only the arguments.

        The values are the same. When the gradient of the outputs is known, the rest is
        computed again from what was kept of the arguments.

        Args:
            function: takes tensors and returns a tuple of tensors; it is pure, so that
                every variable goes in and comes out as a tensor.
            store: how the arguments are kept; None for as they are.
            compiled: whether XLA compiles the step, where the backend must know.
        """

    @abstractmethod
    def linear(
        self, forward: Linear, transposed: Linear, inputs: Tensors, held: Sequence[Any]
    ) -> Any:
        """Return `forward(inputs, *held)`, whose backward pass keeps only `held`.

        What `forward` makes of `held`, such as a float kernel of its codes, is made
        again there, once the gradient of the result is known. It has no forward-mode
        derivative.

        Args:
            forward: linear in its first argument.
            transposed: takes the gradient of the result and `held`, and returns that of
                `inputs`.
            inputs: a float tensor.
            held: tensors to which no gradient flows.
        """

    def after(self, value: Any, other: Any, taken: Callable[[Any], Any]) -> Any:
        """Return `taken(value)`, of which nothing is made before `other` is there.

        A graph runs whatever has its inputs, and a compiler may put what needs little
        before all else: this holds it back. Where operations run one after the other
        as they are called, there is nothing to hold back.

        Args:
            value: a tensor that is there from the beginning.
            other: the tensor to wait for.
            taken: cuts out what is needed of a tensor.
        """
        return taken(value)

    def in_loop(
        self, looped: Callable[[Loop], Any], whole: Callable[[], Any], inputs: Tensors
    ) -> Any:
        """Return `looped(loop)` where a loop over blocks is faster, else `whole()`.

        XLA writes a weight that becomes float to main memory, and reads it from there.
        In a loop over blocks that fit into the cache of a CPU it does not.

        Args:
            looped: Returns the outputs. It takes a function that calls another one with
                each number below a count and stacks the results.
            whole: Returns the same outputs without a loop.
            inputs: Tensor that both depend on.
        """
        del looped, inputs
        return whole()
