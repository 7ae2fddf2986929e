"""Operations that take parts of a tensor: split, `x[...]`, take."""

from numbers import Integral
from typing import Any

import numpy as np

from kerasmem.graph.channels.arrays import varying
from kerasmem.graph.channels.call import Call
from kerasmem.graph.channels.kept import Kept

Key = list[tuple[Any, int | None]]
"""The parts of an index, each with the axis that it takes from; None for a new axis."""


def split_config(call: Call, kept: Kept) -> dict[str, Any]:
    """Return the new places at which `ops.split` cuts."""
    axis = call.operation.axis
    sizes = [kept.shape(made)[axis] for made in call.made]
    given = call.operation.indices_or_sections
    if isinstance(given, int) and len(set(sizes)) == 1:
        return {}
    if sizes == [shape[axis] for shape in call.shapes]:
        return {}
    return {"indices_or_sections": np.cumsum(sizes[:-1]).tolist()}


def split(op: Any, full: np.ndarray) -> list[np.ndarray]:
    """Return the parts of an array."""
    given = op.indices_or_sections
    return np.split(full, given if isinstance(given, int) else list(given), op.axis)


def item(call: Call) -> list[np.ndarray]:
    """Label `x[...]` with slices, numbers, an ellipsis and new axes."""
    key = _key(call)
    if key is None:
        return call.frozen(f"the index of {call.operation.name!r} is not plain")
    changing = varying(call.x.array)
    for part, axis in key:
        stepped = isinstance(part, slice) and part.step not in (None, 1)
        if axis in changing and stepped:
            return call.frozen(f"{call.operation.name!r} takes every n-th channel")
    # Along an axis of one label for all places, any place has it.
    places = [p if a is None or a in changing else _any_place(p) for p, a in key]
    return [call.x.array[tuple(places)]]


def _any_place(part: Any) -> Any:
    return slice(None) if isinstance(part, slice) else 0


def item_arguments(call: Call, kept: Kept) -> tuple[Any, ...] | None:
    """Return the index for the channels that stay, None where it stays as it is."""
    key = _key(call)
    if key is None:
        return None
    new = []
    for part, axis in key:
        mask = np.ones(0, bool) if axis is None else kept.mask(call.x, axis)
        new.append(part if mask.all() else _part(part, mask))
    return (tuple(new),)


def _part(part: Any, mask: np.ndarray) -> Any:
    before = np.concatenate([[0], np.cumsum(mask)])
    if isinstance(part, slice):
        start, stop, _ = part.indices(len(mask))
        return slice(int(before[start]), int(before[max(start, stop)]))
    return int(before[part % len(mask)])


def _key(call: Call) -> Key | None:
    """Return the parts of an index, None where one of them is not known."""
    key = call.args[1]
    # The config of a model gives tuples back as lists.
    parts = list(key) if isinstance(key, list | tuple) else [key]
    if not all(p is None or p is Ellipsis or _plain(p) for p in parts):
        return None
    taken = sum(p is not None and p is not Ellipsis for p in parts)
    spread = [slice(None)] * (len(call.x.shape) - taken)
    place = parts.index(Ellipsis) if Ellipsis in parts else len(parts)
    parts = [*parts[:place], *spread, *(parts[place + 1 :])]
    axes = iter(range(len(call.x.shape)))
    return [(part, None if part is None else next(axes)) for part in parts]


def _plain(part: Any) -> bool:
    if isinstance(part, slice):
        ends = (part.start, part.stop, part.step)
        return all(x is None or isinstance(x, Integral) for x in ends)
    return isinstance(part, Integral)


def taken(call: Call) -> list[np.ndarray]:
    """Label `ops.take` with a number or with an array of numbers of any rank."""
    places, axis = _places(call), call.operation.axis
    rank = len(call.x.shape)
    if places is None or axis is None or axis % rank == 0:
        return call.frozen(f"the places of {call.operation.name!r} are not plain")
    if axis % rank not in varying(call.x.array):
        places = np.zeros_like(places)
    return [call.x.array.take(places, axis)]


def taken_arguments(call: Call, kept: Kept) -> tuple[Any, ...] | None:
    """Return the places of the channels that stay, None where all of them do."""
    places, axis = _places(call), call.operation.axis
    if places is None or axis is None or kept.mask(call.x, axis).all():
        return None
    mask, made = kept.mask(call.x, axis), call.made[0]
    new = (np.cumsum(mask) - 1)[places]
    for number in range(new.ndim):
        stays = kept.mask(made, axis % len(call.x.shape) + number)
        new = np.compress(stays, new, number)
    return (new.tolist(),)


def _places(call: Call) -> np.ndarray | None:
    """Return the places that `ops.take` takes, None where they are not known."""
    given = call.args[1]
    if not isinstance(given, list | tuple | np.ndarray | Integral):
        return None
    places = np.asarray(given)
    return places if np.issubdtype(places.dtype, np.integer) else None
