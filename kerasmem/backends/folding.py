"""Reductions that XLA makes vector instructions of.

XLA adds up floats one by one, because the order counts. So a tensor is cut into parts,
which are added up entry by entry until few entries are left: several times as fast, and
to more digits.
"""

from collections.abc import Callable
from typing import Any

from keras import ops

_FEW = 4096  # entries; to cut up fewer costs more than it saves
_PARTS = 8

Change = Callable[[Any], Any]
Combine = Callable[[Any, Any], Any]


def fold(values: Any, change: Change, combine: Combine) -> Any:
    """Return few entries that combine to the same as `change` of all.

    Args:
        values: a tensor; one of unknown size is not made smaller.
        change: done to the entries of a part, one by one.
        combine: of two parts, entry by entry, in any order; such as `ops.add`.
    """
    values = ops.reshape(values, (-1,))
    size = values.shape[0]
    if size is None or size <= _FEW:
        return change(values)
    length = size // _PARTS
    folded = change(values[:length])
    for start in range(length, _PARTS * length, length):
        folded = combine(folded, change(values[start : start + length]))
    rest = change(values[_PARTS * length :])
    return ops.concatenate([fold(folded, _as_it_is, combine), rest])


def squared_norm(values: Any) -> Any:
    """Return the square of the L2 norm of a float32 tensor."""
    return ops.sum(fold(values, ops.square, ops.add))


def statistics(values: Any) -> Any:
    """Return the largest absolute value, the numbers of nonzero and of nonfinite."""
    largest = ops.max(fold(values, ops.abs, ops.maximum))
    counts = [
        ops.cast(ops.sum(fold(values, counted, ops.add)), "float32")
        for counted in (_is_nonzero, _is_nonfinite)
    ]
    return ops.stack([largest, *counts])


def _is_nonzero(values: Any) -> Any:
    return ops.cast(ops.not_equal(values, 0.0), "int32")


def _is_nonfinite(values: Any) -> Any:
    return ops.cast(ops.logical_not(ops.isfinite(values)), "int32")


def _as_it_is(values: Any) -> Any:
    return values
