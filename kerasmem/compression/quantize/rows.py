"""Stored layout of weights: groups that share a scale, and unpacking of codes."""

import math
from dataclasses import dataclass, replace
from typing import Any

import keras


@dataclass(frozen=True)
class Rows:
    """Layout with the summed axes of a weight merged and split into groups.

    A weight of shape `(*lead, *summed, *trail)` is stored as `(*lead, groups, length,
    *trail)`. Nonadjacent summed axes are moved to the front first. Incomplete groups
    are padded with zeros.

    Args:
        shape: Shape of the weight.
        axes: Axes that an output channel sums over, in ascending order.
        group_size: Maximum number of entries in a group. If None, a single group.

    Example:
        >>> rows = Rows((3, 10, 4), (0, 1), group_size=16)
        >>> rows.groups, rows.length, rows.stored_shape
        (2, 15, (2, 15, 4))
    """

    shape: tuple[int, ...]
    axes: tuple[int, ...]
    group_size: int | None = None

    @property
    def _summed(self) -> int:
        return math.prod(self.shape[axis] for axis in self.axes)

    @property
    def groups(self) -> int:
        """Number of groups per output channel, of sizes as equal as possible."""
        return math.ceil(self._summed / (self.group_size or max(self._summed, 1)))

    @property
    def length(self) -> int:
        """Number of entries in a group."""
        return math.ceil(self._summed / self.groups)

    @property
    def axis(self) -> int:
        """Axis of the stored weight that contains the entries of a group."""
        return self._first + 1

    @property
    def stored_shape(self) -> tuple[int, ...]:
        """Shape of the stored weight before packing."""
        lead, trail = self._around
        return (*lead, self.groups, self.length, *trail)

    def stored_axis(self, axis: int) -> int:
        """Return the stored position of an axis that is not summed over."""
        place = self._order.index(axis)
        return place if place < self._first else place - len(self.axes) + 2

    def narrowed(self, axis: int, size: int) -> "Rows":
        """Return the layout of a slice with length `size` along `axis`."""
        shape = tuple(size if i == axis else n for i, n in enumerate(self.shape))
        return replace(self, shape=shape)

    def halved(self) -> "Rows | None":
        """Return the layout of every second entry. `None` if a byte spans two rows.

        The zeros that fill the groups of a single summed axis are entries of it.
        """
        if not self.axes or self.length % 2:
            return None
        last, total = self.axes[-1], self.groups * self.length
        size = total if len(self.axes) == 1 else self.shape[last]
        if size % 2 or (total != self._summed and size != total):
            return None
        half = self.narrowed(last, size // 2)
        return replace(half, group_size=self.length // 2)

    def store(self, values: Any, ops: Any) -> Any:
        """Return a weight in stored layout. `ops` is `numpy` or `keras.ops`."""
        lead, trail = self._around
        values = ops.transpose(values, self._order)
        values = ops.reshape(values, (*lead, self._summed, *trail))
        missing = self.groups * self.length - self._summed
        if missing:
            fill = [(0, missing if i == len(lead) else 0) for i in range(values.ndim)]
            values = ops.pad(values, fill)
        return ops.reshape(values, self.stored_shape)

    def restore(self, values: Any, ops: Any) -> Any:
        """Undo `store`."""
        lead, trail = self._around
        total = self.groups * self.length
        values = ops.reshape(values, (*lead, total, *trail))
        if total != self._summed:
            values = values[(*(slice(None) for _ in lead), slice(self._summed))]
        order = self._order
        values = ops.reshape(values, tuple(self.shape[axis] for axis in order))
        if order == tuple(range(len(order))):
            return values
        return ops.transpose(values, [order.index(axis) for axis in range(len(order))])

    @property
    def _first(self) -> int:
        first = self.axes[0] if self.axes else 0
        side_by_side = tuple(range(first, first + len(self.axes)))
        return first if self.axes == side_by_side else 0

    @property
    def _order(self) -> tuple[int, ...]:
        rest = [axis for axis in range(len(self.shape)) if axis not in self.axes]
        first = self._first
        return (*rest[:first], *self.axes, *rest[first:])

    @property
    def _around(self) -> tuple[tuple[int, ...], tuple[int, ...]]:
        shape = [self.shape[axis] for axis in self._order]
        return tuple(shape[: self._first]), tuple(shape[self._first + len(self.axes) :])


def unpack_half(packed: Any, half: int) -> Any:
    """Return the int4 codes at even (`half=0`) or odd (`half=1`) positions as int8."""
    four = keras.ops.cast(4, "int8")
    codes = packed if half else keras.ops.left_shift(packed, four)
    return keras.ops.right_shift(codes, four)


def unpack_int4(packed: Any, axis: int, length: int) -> Any:
    """Unpack `length` int4 codes along `axis`. Inverse of `pack_int4`."""
    ops = keras.ops
    both = ops.stack([unpack_half(packed, n) for n in range(2)], axis=axis + 1)
    # The batch axis of looked-up rows may be unknown.
    shape = ops.shape(packed)
    codes = ops.reshape(both, (*shape[:axis], 2 * shape[axis], *shape[axis + 1 :]))
    if length == 2 * shape[axis]:
        return codes
    return codes[(*(slice(None) for _ in shape[:axis]), slice(length))]


def unpack_int3(packed: Any, axis: int, length: int) -> Any:
    """Unpack `length` int3 codes along `axis`. Inverse of `pack_int3`."""
    ops = keras.ops
    shape = ops.shape(packed)
    before, behind, count = shape[:axis], shape[axis + 1 :], shape[axis] // 3
    thirds = ops.reshape(packed, (*before, count, 3, *behind))
    thirds = ops.bitwise_and(ops.cast(thirds, "int32"), _int32(255))
    first, second, third = ops.unstack(thirds, 3, axis=axis + 1)
    word = ops.bitwise_or(first, ops.left_shift(second, _int32(8)))
    word = ops.bitwise_or(word, ops.left_shift(third, _int32(16)))
    codes = [
        # The arithmetic right shift extends the sign bit of the code.
        ops.right_shift(ops.left_shift(word, _int32(29 - 3 * n)), _int32(29))
        for n in range(8)
    ]
    unpacked_codes = ops.cast(ops.stack(codes, axis=axis + 1), "int8")
    unpacked_codes = ops.reshape(unpacked_codes, (*before, 8 * count, *behind))
    if length == 8 * count:
        return unpacked_codes
    return unpacked_codes[(*(slice(None) for _ in before), slice(length))]


def _int32(number: int) -> Any:
    return keras.ops.cast(number, "int32")
