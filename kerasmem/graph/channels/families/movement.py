"""Operations that move entries: they are carried out on the labels themselves."""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from kerasmem.graph.channels.arrays import (
    fits,
    of_rank,
    standing_in,
    varying,
    written_out,
)
from kerasmem.graph.channels.call import Call
from kerasmem.graph.channels.kept import Kept

Move = Callable[[Any, np.ndarray], Any]
"""Does to an array what an operation does to a tensor."""


def moved(move: Move) -> Callable[[Call], list[np.ndarray]]:
    """Return a rule that does to the labels what the operation does to its input."""

    def label(call: Call) -> list[np.ndarray]:
        full = written_out(call.x)
        if full is None:
            return call.frozen(f"{call.operation.name!r} moves what has no fixed place")
        results = move(call.operation, full)
        results = results if isinstance(results, list | tuple) else [results]
        for result, shape in zip(results, call.shapes, strict=True):
            if not fits(result.shape, shape):
                return call.frozen(f"{call.operation.name!r} moves samples of a batch")
        return list(results)

    return label


def reshaped(call: Call) -> list[np.ndarray]:
    """Label Reshape and Flatten."""
    if call.x.array.size == 1:
        return [call.x.array.reshape((1,) * call.rank)]
    full = written_out(call.x)
    if full is None:
        return call.frozen(f"{call.operation.name!r} moves what has no fixed place")
    if getattr(call.operation, "data_format", None) == "channels_first":
        full = np.moveaxis(full, 1, -1)
    target = list(standing_in(call.shape))
    open_axes = [a for a, size in enumerate(call.shape) if size is None]
    if np.prod(target) != full.size and open_axes:
        target[open_axes[-1]] = -1
    try:
        return [full.reshape(target)]
    except ValueError:
        return call.frozen(f"{call.operation.name!r} moves what has no fixed place")


def reshape_layer_config(call: Call, kept: Kept) -> dict[str, Any]:
    """Return the new target of the layer Reshape."""
    return {"target_shape": _target(call, kept, call.operation.target_shape, 1)}


def reshape_config(call: Call, kept: Kept) -> dict[str, Any]:
    """Return the new target of `ops.reshape`."""
    return {"newshape": _target(call, kept, call.operation.newshape, 0)}


def _target(call: Call, kept: Kept, given: Sequence[Any], skip: int) -> tuple:
    after = kept.shape(call.made[0])[skip:]
    before = call.shape[skip:]
    return tuple(
        old if now == then else now
        for old, now, then in zip(given, after, before, strict=True)
    )


def concatenated(call: Call) -> list[np.ndarray]:
    """Label Concatenate: labels side by side along its axis."""
    axis = call.operation.axis % call.rank
    arrays = [x.array for x in call.inputs]
    changing = [a for array in arrays for a in varying(array)]
    if axis not in changing and changing:
        # Along an axis without channels: those of the other axes must agree.
        call.labels.unite(*sorted(arrays, key=lambda array: -array.size))
        return [max(arrays, key=lambda array: array.size)]
    lengths = [standing_in(x.shape)[axis] for x in call.inputs]
    wide = np.broadcast_shapes(*(np.delete(array.shape, axis) for array in arrays))
    parts = [
        np.broadcast_to(array, (*wide[:axis], length, *wide[axis:]))
        for array, length in zip(arrays, lengths, strict=True)
    ]
    return [np.concatenate(parts, axis)]


def stacked(call: Call) -> list[np.ndarray]:
    """Label `ops.stack`."""
    axis = call.operation.axis % call.rank
    rank = call.rank - 1
    wide = np.broadcast_arrays(*(of_rank(x.array, rank) for x in call.inputs))
    return [np.stack(wide, axis)]


def padded(call: Call) -> list[np.ndarray]:
    """Label `ops.pad`: what is added along the axis of channels stays."""
    op, array = call.operation, call.x.array
    widths = np.broadcast_to(np.asarray(op.pad_width), (array.ndim, 2))
    if widths[0].any():
        return call.frozen(f"{op.name!r} moves samples of a batch")
    changing = varying(array)
    wanted = [tuple(w) if a in changing else (0, 0) for a, w in enumerate(widths)]
    if not any(map(any, wanted)):
        return [array]
    if op.mode != "constant":
        return call.frozen(f"{op.name!r} mirrors channels")
    zero = int(call.labels.frozen(1, f"{op.name!r} adds it")[0])
    return [np.pad(array, wanted, constant_values=zero)]
