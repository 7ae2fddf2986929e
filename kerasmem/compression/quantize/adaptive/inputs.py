"""Second moments of what goes into a layer, summed up over samples that stream by."""

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import numpy as np

from kerasmem.backends import current
from kerasmem.backends.shadow import shadow
from kerasmem.compression.quantize.adaptive.columns import columns
from kerasmem.compression.quantize.adaptive.relaxation import Moments
from kerasmem.errors import DataError
from kerasmem.files.data import input_batches
from kerasmem.graph.values import to_numpy

_SAMPLES, _BATCH_SIZE = 512, 16
_MOST_ROWS = 64
"""So many places of a sample are looked at, of a convolution's output."""


def moments_of(
    models: tuple[Any, Any], layers: tuple[Any, Any], data: Any
) -> Moments | None:
    """Return the moments of a layer's inputs, None if it is not called.

    Args:
        models: the float model, and a copy with rounded weights before the layer.
        layers: the layer in one and in the other.
        data: samples in any form that `kerasmem.files.data` lists; the first 512 count.

    Raises:
        DataError: if they are not finite.
    """
    rounded, mixed, rows = None, None, 0
    random = np.random.default_rng(0)
    with _noted(layers[0]) as exact, _noted(layers[1]) as others:
        for batch in input_batches(data, _SAMPLES, _BATCH_SIZE):
            with current().inference():
                for model in models:
                    model(batch, training=False)
            for pair in zip(exact, others, strict=True):
                behind, before = _rows(layers[0], pair, random)
                rows += before.shape[1]
                turned = before.swapaxes(-1, -2)
                own, both = turned @ before, turned @ behind
                rounded = own.astype(np.float64) if rounded is None else rounded + own
                mixed = both.astype(np.float64) if mixed is None else mixed + both
            exact.clear()
            others.clear()
    if rounded is None or mixed is None:
        return None
    if not (np.isfinite(rounded).all() and np.isfinite(mixed).all()):
        raise DataError(
            f"The layer {layers[0].name!r} is given NaN or infinity. Next: look at the "
            "data first, then at the weights of the layers before it."
        )
    return Moments(rounded, mixed, rows)


def _rows(
    layer: Any, pair: tuple[Any, Any], random: np.random.Generator
) -> tuple[np.ndarray, np.ndarray]:
    """Return some rows of what `columns` returns of two tensors, at the same places.

    A convolution reads each number many times: all rows of a batch may take gigabytes,
    so only those of one sample are there at once.
    """
    found: tuple[list[np.ndarray], list[np.ndarray]] = ([], [])
    arrays = [to_numpy(x).astype(np.float32) for x in pair]
    for sample in range(len(arrays[0])):
        every = [columns(layer, x[sample : sample + 1]) for x in arrays]
        count = every[0].shape[1]
        places = np.arange(count)
        if count > _MOST_ROWS:
            places = random.choice(count, _MOST_ROWS, replace=False)
        for parts, part in zip(found, every, strict=True):
            parts.append(part[:, places])
    behind, before = (np.concatenate(parts, axis=1) for parts in found)
    return behind, before


@contextmanager
def _noted(layer: Any) -> Iterator[list[Any]]:
    """Return a scope in which the inputs of a layer come into a list."""
    seen: list[Any] = []

    def call(original: Any, inputs: Any, *args: Any, **kwargs: Any) -> Any:
        seen.append(inputs)
        return original(inputs, *args, **kwargs)

    with ExitStack() as undo:
        undo.callback(shadow(layer, "call", call))
        yield seen
