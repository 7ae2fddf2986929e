"""Detects additions that Keras computes along another axis than NumPy.

On TensorFlow, `keras.ops.add` treats a second operand with one axis longer than 1 as a
bias. This happens if the first operand has this length along its last or second axis.
Keras 3.15 then adds along that axis, regardless of the operand's axis. Pruning can
trigger this, because it changes the lengths.
"""

from collections.abc import Sequence
from itertools import product

from kerasmem.backends import current
from kerasmem.graph.channels.cost import all_channels
from kerasmem.graph.channels.labelled_calls import Addition, ChannelSubset, LabelledCall
from kerasmem.graph.channels.labels import Shape
from kerasmem.graph.channels.walk import LabelledModel, family_of

WHY = "with fewer channels, keras.ops.add may add along another axis in {name!r}"
"""Reason to report for channels that are kept."""


def added_otherwise(
    labelled: LabelledModel, subset: ChannelSubset
) -> list[LabelledCall]:
    """Returns the calls in which Keras would add along another axis after pruning."""
    if not current().adds_along_any_axis:
        return []
    whole, calls = all_channels(labelled), []
    for call in labelled.calls.values():
        family = family_of(call.operation)
        if family is not None:
            before, after = (family.additions(call, of) for of in (whole, subset))
            if any(not _alike(*two) for two in zip(before, after, strict=True)):
                calls.append(call)
    return calls


def wrong_axis(first: Sequence[int], second: Sequence[int]) -> int | None:
    """Returns the wrong axis along which `keras.ops.add` adds two shapes, or None.

    Example:
        >>> wrong_axis((2, 4, 3, 4), (1, 4, 1, 1)), wrong_axis((2, 4, 3, 5), (4, 1, 1))
        (3, None)
    """
    long = [axis for axis, size in enumerate(second) if size > 1]
    if len(long) != 1 or len(first) < 2:
        return None
    for axis in (len(first) - 1, 1):
        if first[axis] == second[long[0]]:
            right = axis - len(first) == long[0] - len(second)
            return None if right and len(second) <= len(first) else axis
    return None


def _alike(before: Addition, after: Addition) -> bool:
    if before == after or all(map(_has_two_long_axes, (before, after))):
        return True
    known_sizes = {
        size for shape in (*before, *after) for size in shape if size is not None
    }
    most = max(known_sizes, default=1)
    lengths = sorted({1, *known_sizes, most + 1, most + 2})
    # Counted from the last axis, so that broadcast axes have the same length.
    axes = sorted({a - len(s) for s in before for a, n in enumerate(s) if n is None})
    for sizes in product(lengths, repeat=len(axes)):
        size_by_axis = dict(zip(axes, sizes, strict=True))
        old, new = (
            wrong_axis(*(_filled(shape, size_by_axis) for shape in shapes))
            for shapes in (before, after)
        )
        if old != new:
            return False
    return True


def _has_two_long_axes(addition: Addition) -> bool:
    return sum(size is not None and size > 1 for size in addition[1]) > 1


def _filled(shape: Shape, sizes: dict[int, int]) -> list[int]:
    return [
        sizes[axis - len(shape)] if size is None else size
        for axis, size in enumerate(shape)
    ]
