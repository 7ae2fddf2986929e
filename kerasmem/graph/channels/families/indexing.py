"""Operations that take parts of a tensor: split, `x[...]`, take."""

from typing import Any

import keras
import numpy as np

from kerasmem.graph.channels.arrays import narrow, varying, written_out
from kerasmem.graph.channels.call import Call
from kerasmem.graph.channels.families.movement import fits
from kerasmem.graph.channels.kept import Kept


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
    full, key = written_out(call.x), _key(call)
    if full is None or key is None:
        return call.frozen(f"the index of {call.operation.name!r} is not plain")
    changing = varying(full)
    for part, axis in key:
        stepped = isinstance(part, slice) and part.step not in (None, 1)
        if axis in changing and stepped:
            return call.frozen(f"{call.operation.name!r} takes every n-th channel")
    result = full[tuple(part for part, _ in key)]
    if not fits(result.shape, call.shape):
        return call.frozen(f"{call.operation.name!r} moves samples of a batch")
    return [narrow(result)]


def item_arguments(call: Call, kept: Kept) -> tuple[Any, ...]:
    """Return the index for the channels that stay."""
    new = []
    for part, axis in _key(call) or ():
        if axis is None or (isinstance(part, slice) and part == slice(None)):
            new.append(part)
            continue
        mask = kept.mask(call.x, axis)
        new.append(part if mask.all() else _part(part, mask))
    return (tuple(new),)


def _part(part: Any, mask: np.ndarray) -> Any:
    before = np.concatenate([[0], np.cumsum(mask)])
    if isinstance(part, slice):
        start, stop, _ = part.indices(len(mask))
        return slice(int(before[start]), int(before[max(start, stop)]))
    return int(before[part % len(mask)])


def _key(call: Call) -> list[tuple[Any, int | None]] | None:
    """Return the parts of an index, each with the axis that it takes from."""
    key = call.args[1] if len(call.args) > 1 else call.kwargs["key"]
    parts = list(key) if isinstance(key, tuple) else [key]
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
        return all(
            x is None or isinstance(x, int) for x in (part.start, part.stop, part.step)
        )
    return isinstance(part, int)


def taken(call: Call) -> list[np.ndarray]:
    """Label `ops.take` with a list of places."""
    full, places = written_out(call.x), _places(call)
    axis = call.operation.axis
    if full is None or places is None or axis is None or axis % full.ndim == 0:
        return call.frozen(f"the places of {call.operation.name!r} are not plain")
    return [narrow(full.take(places, axis))]


def taken_arguments(call: Call, kept: Kept) -> tuple[Any, ...] | None:
    """Return the places of the channels that stay."""
    mask = kept.mask(call.x, call.operation.axis)
    if mask.all():
        return None
    places = np.asarray(_places(call)) % len(mask)
    return ((np.cumsum(mask) - 1)[places[mask[places]]].tolist(),)


def _places(call: Call) -> list[int] | None:
    places = call.args[1] if len(call.args) > 1 else call.kwargs["indices"]
    flat = keras.tree.flatten(places)
    if not isinstance(places, list | tuple) or not all(
        isinstance(x, int) for x in flat
    ):
        return None
    return list(places)
