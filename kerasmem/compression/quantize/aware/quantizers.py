"""Fake quantizers that find their range in what they see while training goes on.

The three ways are those of tensorflow-model-optimization, on three backends and to the
bit.
"""

from abc import ABC, abstractmethod
from dataclasses import KW_ONLY, dataclass
from typing import Any

import keras

from kerasmem.compression.quantize.aware.rounding import divided, round_to_range

Ends = tuple[Any, ...]
"""The lower and the upper end of a range: float32 scalars, or vectors with `axis`."""


@dataclass(frozen=True)
class FakeQuantizer(ABC):
    """Rounds to the codes of a range that it keeps up to date.

    Args:
        bits: 2 to 8.
        symmetric: whether the range is as wide below zero as above.
        narrow_range: whether the lowest code stays unused.
        axis: the axis along which every place has a range of its own, if any.
    """

    _: KW_ONLY
    bits: int = 8
    symmetric: bool = False
    narrow_range: bool = False
    axis: int | None = None

    def __call__(self, x: Any, ends: Ends, *, training: bool = True) -> Any:
        """Return `x` rounded, and the ends from now on.

        Args:
            x: a float tensor.
            ends: those so far.
            training: False to leave them as they are.
        """
        if training:
            ends = self.updated(ends, self.seen(x))
        return self.rounded(x, ends), ends

    def rounded(self, x: Any, ends: Ends) -> Any:
        """Return `x` rounded to the codes of a range."""
        low, high = ends
        return round_to_range(
            x, low, high, self.bits, narrow_range=self.narrow_range, axis=self.axis
        )

    def seen(self, x: Any, *, never_negative: bool = False) -> Ends:
        """Return the ends of the range with zero in it that `x` takes.

        Args:
            x: a float tensor.
            never_negative: whether nothing below zero needs to be looked for.
        """
        ops = keras.ops
        x = ops.cast(ops.stop_gradient(x), "float32")
        axis = None if self.axis is None else self.axis % len(x.shape)
        others = tuple(i for i in range(len(x.shape)) if i != axis)
        high = ops.max(x, others)
        low = ops.zeros_like(high) if never_negative else ops.min(x, others)
        return self._with_zero(low, high)

    @abstractmethod
    def updated(self, ends: Ends, seen: Ends) -> Ends:
        """Return the ends from now on.

        Args:
            ends: those so far.
            seen: those of the latest tensor.
        """

    def _with_zero(self, low: Any, high: Any) -> Ends:
        if self.symmetric:
            return _mirrored(low, high, self._ratio)
        return keras.ops.minimum(low, 0.0), keras.ops.maximum(high, 0.0)

    @property
    def _ratio(self) -> float:
        """The lower end of a symmetric range over the upper one, or its inverse."""
        # There is one code more below zero than above, unless it stays unused.
        codes = 1 << self.bits
        return -1.0 if self.narrow_range else -(codes - 2) / codes


class LastValue(FakeQuantizer):
    """Takes the range of the latest tensor; the one that suits weights."""

    def updated(self, ends: Ends, seen: Ends) -> Ends:  # noqa: ARG002
        """Return `seen`."""
        return seen


@dataclass(frozen=True)
class MovingAverage(FakeQuantizer):
    """Takes an average of ranges in which late ones count more; suits activations.

    Args:
        decay: weight of what was before, in [0, 1).
    """

    _: KW_ONLY
    decay: float = 0.999

    def updated(self, ends: Ends, seen: Ends) -> Ends:
        """Return the ends with a part of the way to `seen` gone."""
        share = 1.0 - self.decay
        pairs = zip(ends, seen, strict=True)
        return tuple(old - (old - new) * share for old, new in pairs)


class AllValues(FakeQuantizer):
    """Takes the range of all that was ever seen."""

    def updated(self, ends: Ends, seen: Ends) -> Ends:
        """Return ends that hold both."""
        ops = keras.ops
        return ops.minimum(ends[0], seen[0]), ops.maximum(ends[1], seen[1])

    def _with_zero(self, low: Any, high: Any) -> Ends:
        if self.symmetric:
            # The upper end from the new lower one: a last bit may be another one.
            low, _ = _mirrored(low, high, self._ratio)
            _, high = _mirrored(low, high, self._ratio)
        return keras.ops.minimum(low, 0.0), keras.ops.maximum(high, 0.0)


def _mirrored(low: Any, high: Any, ratio: float) -> Ends:
    """Return a range that is wider on one side, if need be, to be symmetric."""
    ops = keras.ops
    return ops.minimum(low, divided(high, ratio)), ops.maximum(high, low * ratio)
