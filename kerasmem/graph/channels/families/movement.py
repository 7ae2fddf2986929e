"""Operations that move or select entries. Their rules apply them to the labels."""

from collections.abc import Callable, Sequence
from numbers import Integral
from typing import Any

import numpy as np

from kerasmem.graph.channels.labelled_calls import ChannelSubset, LabelledCall
from kerasmem.graph.channels.labels import (
    fits,
    of_rank,
    standing_in,
    varying,
    written_out,
)

Move = Callable[[Any, np.ndarray], Any]
"""Applies an operation to an array of labels."""


def moved(move: Move) -> Callable[[LabelledCall], list[np.ndarray]]:
    """Returns a rule that applies an operation to the labels of its input."""

    def label(call: LabelledCall) -> list[np.ndarray]:
        full = written_out(call.x)
        if full is None:
            return call.frozen(f"{call.operation.name!r} moves axes of unknown size")
        results = move(call.operation, full)
        results = results if isinstance(results, list | tuple) else [results]
        for result, shape in zip(results, call.shapes, strict=True):
            if not fits(result.shape, shape):
                return call.frozen(f"{call.operation.name!r} moves samples of a batch")
        return list(results)

    return label


def reshaped(call: LabelledCall) -> list[np.ndarray]:
    """Labels Reshape and Flatten."""
    if call.x.array.size == 1:
        return [call.x.array.reshape((1,) * call.rank)]
    full = written_out(call.x)
    if full is None:
        return call.frozen(f"{call.operation.name!r} moves axes of unknown size")
    if getattr(call.operation, "data_format", None) == "channels_first":
        full = np.moveaxis(full, 1, -1)
    target = list(standing_in(call.shape))
    open_axes = [a for a, size in enumerate(call.shape) if size is None]
    if np.prod(target) != full.size and open_axes:
        target[open_axes[-1]] = -1
    try:
        return [full.reshape(target)]
    except ValueError:
        return call.frozen(f"{call.operation.name!r} moves axes of unknown size")


def reshape_layer_config(call: LabelledCall, subset: ChannelSubset) -> dict[str, Any]:
    """Returns the new target shape of the layer Reshape."""
    return {"target_shape": _target(call, subset, call.operation.target_shape, 1)}


def reshape_config(call: LabelledCall, subset: ChannelSubset) -> dict[str, Any]:
    """Returns the new target shape of `ops.reshape`."""
    return {"newshape": _target(call, subset, call.operation.newshape, 0)}


def _target(
    call: LabelledCall, subset: ChannelSubset, target: Sequence[Any], skip: int
) -> tuple:
    after = subset.shape(call.outputs[0])[skip:]
    before = call.shape[skip:]
    return tuple(
        old if now == then else now
        for old, now, then in zip(target, after, before, strict=True)
    )


def concatenated(call: LabelledCall) -> list[np.ndarray]:
    """Labels Concatenate. Concatenates the labels along the same axis."""
    axis = call.operation.axis % call.rank
    arrays = [x.array for x in call.inputs]
    changing = [a for array in arrays for a in varying(array)]
    if axis not in changing and changing:
        # Along an axis without channels, the labels of the other axes must agree.
        call.labels.unite(*sorted(arrays, key=lambda array: -array.size))
        return [max(arrays, key=lambda array: array.size)]
    lengths = [standing_in(x.shape)[axis] for x in call.inputs]
    wide = np.broadcast_shapes(*(np.delete(array.shape, axis) for array in arrays))
    parts = [
        np.broadcast_to(array, (*wide[:axis], length, *wide[axis:]))
        for array, length in zip(arrays, lengths, strict=True)
    ]
    return [np.concatenate(parts, axis)]


def stacked(call: LabelledCall) -> list[np.ndarray]:
    """Labels `ops.stack`."""
    axis = call.operation.axis % call.rank
    rank = call.rank - 1
    wide = np.broadcast_arrays(*(of_rank(x.array, rank) for x in call.inputs))
    return [np.stack(wide, axis)]


def padded(call: LabelledCall) -> list[np.ndarray]:
    """Labels `ops.pad`. Padding along the channel axis cannot be removed."""
    op, array = call.operation, call.x.array
    widths = np.broadcast_to(np.asarray(op.pad_width), (array.ndim, 2))
    if widths[0].any():
        return call.frozen(f"{op.name!r} moves samples of a batch")
    changing = varying(array)
    own_widths = [tuple(w) if a in changing else (0, 0) for a, w in enumerate(widths)]
    if not any(map(any, own_widths)):
        return [array]
    if op.mode != "constant":
        return call.frozen(f"{op.name!r} mirrors channels")
    zero = int(call.labels.frozen(1, f"{op.name!r} adds it")[0])
    return [np.pad(array, own_widths, constant_values=zero)]


Key = list[tuple[Any, int | None]]
"""Parts of an index, each with its axis, or None for a new axis."""


def split_config(call: LabelledCall, subset: ChannelSubset) -> dict[str, Any]:
    """Returns the new indices at which `ops.split` splits."""
    axis = call.operation.axis
    sizes = [subset.shape(output)[axis] for output in call.outputs]
    sections = call.operation.indices_or_sections
    if isinstance(sections, int) and len(set(sizes)) == 1:
        return {}
    if sizes == [shape[axis] for shape in call.shapes]:
        return {}
    return {"indices_or_sections": np.cumsum(sizes[:-1]).tolist()}


def split(op: Any, full: np.ndarray) -> list[np.ndarray]:
    """Splits an array as `ops.split`."""
    sections = op.indices_or_sections
    return np.split(
        full, sections if isinstance(sections, int) else list(sections), op.axis
    )


def item(call: LabelledCall) -> list[np.ndarray]:
    """Labels `x[...]` with slices, numbers, an ellipsis and new axes."""
    key = _key(call)
    if key is None:
        return call.frozen(f"{call.operation.name!r} has an unsupported index")
    changing = varying(call.x.array)
    for part, axis in key:
        has_step = isinstance(part, slice) and part.step not in (None, 1)
        if axis in changing and has_step:
            return call.frozen(f"{call.operation.name!r} takes every n-th channel")
    # Along an axis with constant labels, any index is equivalent.
    places = [p if a is None or a in changing else _any_place(p) for p, a in key]
    return [call.x.array[tuple(places)]]


def _any_place(part: Any) -> Any:
    return slice(None) if isinstance(part, slice) else 0


def item_arguments(call: LabelledCall, subset: ChannelSubset) -> tuple[Any, ...] | None:
    """Returns the index for the remaining channels, or None if unchanged."""
    key = _key(call)
    if key is None:
        return None
    new = []
    for part, axis in key:
        mask = np.ones(0, bool) if axis is None else subset.mask(call.x, axis)
        new.append(part if mask.all() else _part(part, mask))
    return (tuple(new),)


def _part(part: Any, mask: np.ndarray) -> Any:
    before = np.concatenate([[0], np.cumsum(mask)])
    if isinstance(part, slice):
        start, stop, _ = part.indices(len(mask))
        return slice(int(before[start]), int(before[max(start, stop)]))
    return int(before[part % len(mask)])


def _key(call: LabelledCall) -> Key | None:
    key = call.args[1]
    # A config contains lists instead of tuples.
    parts = list(key) if isinstance(key, list | tuple) else [key]
    if not all(p is None or p is Ellipsis or _plain(p) for p in parts):
        return None
    count = sum(p is not None and p is not Ellipsis for p in parts)
    spread = [slice(None)] * (len(call.x.shape) - count)
    place = parts.index(Ellipsis) if Ellipsis in parts else len(parts)
    parts = [*parts[:place], *spread, *(parts[place + 1 :])]
    axes = iter(range(len(call.x.shape)))
    return [(part, None if part is None else next(axes)) for part in parts]


def _plain(part: Any) -> bool:
    if isinstance(part, slice):
        ends = (part.start, part.stop, part.step)
        return all(x is None or isinstance(x, Integral) for x in ends)
    return isinstance(part, Integral)


def taken(call: LabelledCall) -> list[np.ndarray]:
    """Labels `ops.take` with a number or an array of numbers."""
    places, axis = _places(call), call.operation.axis
    rank = len(call.x.shape)
    if places is None or axis is None or axis % rank == 0:
        return call.frozen(f"{call.operation.name!r} has unsupported indices")
    if axis % rank not in varying(call.x.array):
        places = np.zeros_like(places)
    return [call.x.array.take(places, axis)]


def taken_arguments(
    call: LabelledCall, subset: ChannelSubset
) -> tuple[Any, ...] | None:
    """Returns the indices of the remaining channels, or None if unchanged."""
    places, axis = _places(call), call.operation.axis
    if places is None or axis is None or subset.mask(call.x, axis).all():
        return None
    mask, output = subset.mask(call.x, axis), call.outputs[0]
    new = (np.cumsum(mask) - 1)[places]
    for number in range(new.ndim):
        stays = subset.mask(output, axis % len(call.x.shape) + number)
        new = np.compress(stays, new, number)
    return (new.tolist(),)


def _places(call: LabelledCall) -> np.ndarray | None:
    indices = call.args[1]
    if not isinstance(indices, list | tuple | np.ndarray | Integral):
        return None
    places = np.asarray(indices)
    return places if np.issubdtype(places.dtype, np.integer) else None
