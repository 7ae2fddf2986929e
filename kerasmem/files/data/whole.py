"""Models that run only on whole batches, such as graph networks."""

import keras

from kerasmem.errors import DataError
from kerasmem.files.data.check import outputs_on
from kerasmem.files.data.forms import is_array_data, sample_count, sample_inputs
from kerasmem.graph.input_shapes import fixed_batch
from kerasmem.types import Dataset, Model


def needed_batch(model: Model, data: Dataset, batch_size: int) -> int | None:
    """Returns the only batch size that a model accepts, or `None` for any size.

    See `fixed_batch` and `whole_batch`.
    """
    return fixed_batch(model) or whole_batch(model, data, batch_size)


def whole_batch(model: Model, data: Dataset, batch_size: int) -> int | None:
    """Returns the batch size of a model that runs only on whole batches, or `None`.

    In a graph network, a batch contains all nodes of a graph. The model is tested on
    one sample and on a batch. The test runs only if the batch is all data, or as long
    as another axis of an input (the adjacency matrix).

    Raises `DataError` if the model fails on both, or runs only on all samples.
    """
    if data is None or not is_array_data(data):
        return None
    count = sample_count(data) or 0
    size = min(batch_size, count)
    one = sample_inputs(data, 1)
    arrays = [array for array in keras.tree.flatten(one) if array is not None]
    lengths = {n for array in arrays for n in array.shape[1:]}
    if count < 2 or not (size == count or lengths & {size, count}) or _runs(model, one):
        return None
    if count % size == 0 and _runs(model, sample_inputs(data, size)):
        return size
    if _runs(model, sample_inputs(data, count)):
        raise DataError(
            f"The model {model.name!r} takes all samples in one batch. Expected: "
            f"batch_size={count}. Received: batch_size={batch_size}."
        )
    outputs_on(model, one)  # raises an error
    return None


def _runs(model: Model, x: Dataset) -> bool:
    try:
        with keras.StatelessScope():  # a layer may count its calls
            outputs_on(model, x)
    except DataError:
        return False
    return True
