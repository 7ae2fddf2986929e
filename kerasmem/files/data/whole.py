"""Models that run on whole batches only, such as graph networks."""

import keras

from kerasmem.errors import DataError
from kerasmem.files.data.check import outputs_on
from kerasmem.files.data.forms import is_array_data, sample_count, sample_inputs
from kerasmem.graph.input_shapes import fixed_batch
from kerasmem.types import Dataset, Model


def needed_batch(model: Model, data: Dataset, batch_size: int) -> int | None:
    """Returns the only batch size that a model takes, or `None` if it takes any.

    See `fixed_batch` and `whole_batch`.

    Args:
        model: A `keras.Model`.
        data: Samples in any of the forms that `kerasmem.files.data` lists, or `None`.
        batch_size: Number of samples per batch.
    """
    return fixed_batch(model) or whole_batch(model, data, batch_size)


def whole_batch(model: Model, data: Dataset, batch_size: int) -> int | None:
    """Returns the batch size of a model that runs on whole batches only, or `None`.

    In a graph network a batch holds all nodes of a graph. The model is called on one
    sample and on a batch if the batch is all of the data, or as long as another axis of
    an input (the adjacency matrix).

    Args:
        model: A `keras.Model`.
        data: Samples in any of the forms that `kerasmem.files.data` lists, or `None`.
        batch_size: Number of samples per batch.

    Raises:
        DataError: If the model can be called on neither, or on all samples alone.
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
    outputs_on(model, one)  # raises
    return None


def _runs(model: Model, x: Dataset) -> bool:
    try:
        with keras.StatelessScope():  # a layer may count its calls
            outputs_on(model, x)
    except DataError:
        return False
    return True
