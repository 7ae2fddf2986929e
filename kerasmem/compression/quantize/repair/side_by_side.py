"""The layers of a model and those of its quantized form, on the same inputs."""

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from functools import partial
from typing import Any

import keras
import numpy as np

from kerasmem.backends import current
from kerasmem.backends.shadow import shadow
from kerasmem.compression.quantize.owners import quantized_variables
from kerasmem.files.data import input_batches
from kerasmem.graph.finite import not_finite
from kerasmem.graph.layers import blocks
from kerasmem.graph.values import to_numpy

SAMPLES, BATCH_SIZE = 128, 32
"""Most samples to look at, and how many go through the model at a time."""

See = Callable[[Any, list[np.ndarray], list[np.ndarray]], None]
"""Called with a float layer, what it makes, and what its quantized form makes."""


def quantized_pairs(original: Any, quantized: Any) -> Iterator[tuple[Any, Any]]:
    """Yield every layer that holds quantized weights, the float one first.

    Args:
        original: a model.
        quantized: a copy of it with quantized weights.
    """
    for before, after in zip(blocks(original), blocks(quantized), strict=True):
        if quantized_variables(after):
            yield before, after


def run_side_by_side(original: Any, quantized: Any, data: Any, see: See) -> None:
    """Run `original` on samples, and each quantized layer on what its own one gets.

    The samples go through in batches; nothing is kept.

    Args:
        original: a model.
        quantized: a copy of it with quantized weights.
        data: samples in any form that `kerasmem.files.data` lists.
        see: is shown what both layers make, call by call.

    Raises:
        DataError: if what comes out of a layer is not finite.
    """
    with ExitStack() as hooks:
        for before, after in quantized_pairs(original, quantized):
            hooks.callback(shadow(before, "call", partial(_both, before, after, see)))
        hooks.enter_context(current().inference())
        for batch in input_batches(data, SAMPLES, BATCH_SIZE):
            original(batch, training=False)


def _both(
    before: Any,
    after: Any,
    see: See,
    original: Callable[..., Any],
    *args: Any,
    **kwargs: Any,
) -> Any:
    outputs = original(*args, **kwargs)
    rounded = after(*args, **kwargs)
    see(before, _arrays(before, outputs), _arrays(after, rounded))
    return outputs


def _arrays(layer: Any, outputs: Any) -> list[np.ndarray]:
    arrays = [to_numpy(y).astype(np.float64) for y in keras.tree.flatten(outputs)]
    if not all(np.isfinite(array).all() for array in arrays):
        raise not_finite(layer)
    return arrays
