"""How the inputs of a segment wait for the backward pass."""

from dataclasses import dataclass
from typing import Any

from keras import ops

from kerasmem.backends.recompute import Like
from kerasmem.memory.compress_activations import codec
from kerasmem.memory.compress_activations.math import FEWEST, grouping


@dataclass(frozen=True)
class PackedStore:
    """Eight bits an entry.

    Args:
        packed: numbers of the arguments that are stored so.
        seed: of the rounding.
    """

    packed: frozenset[int]
    seed: int

    def applies_to(self, index: int, tensor: Any) -> bool:
        """Return whether the argument is packed, and of a length that is worth it."""
        # Within a step TensorFlow may know less of a shape than the model does.
        return index in self.packed and grouping(tuple(tensor.shape)).entries >= FEWEST

    def pack(self, tensor: Any) -> tuple[Any, ...]:
        """Return codes, scales and the codes of zero."""
        return codec.pack(tensor, grouping(tuple(tensor.shape)), self.seed)

    def unpack(self, packed: tuple[Any, ...], like: Like) -> Any:
        """Return the activation, rounded."""
        known = [size if isinstance(size, int) else None for size in like.shape]
        return codec.unpack(packed, grouping(known), like.shape, like.dtype)


@dataclass(frozen=True)
class EmptyStore:
    """Nothing at all, for a segment whose gradient needs no values.

    Args:
        dropped: numbers of the arguments that are not stored.
    """

    dropped: frozenset[int]

    def applies_to(self, index: int, tensor: Any) -> bool:  # noqa: ARG002
        """Return whether the argument is dropped."""
        return index in self.dropped

    def pack(self, tensor: Any) -> tuple[Any, ...]:
        """Return one zero: what is made of it waits for the gradient, as it must."""
        return (ops.zeros((), dtype=tensor.dtype),)

    def unpack(self, packed: tuple[Any, ...], like: Like) -> Any:
        """Return zeros."""
        return ops.broadcast_to(packed[0], like.shape)
