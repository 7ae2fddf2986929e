"""Supported forms of samples, and conversion for `model.fit`."""

from collections.abc import Iterable, Iterator
from itertools import count as numbers_from
from itertools import islice
from typing import Any

import keras
import numpy as np

from kerasmem.errors import DataError
from kerasmem.graph.input_shapes import fixed_batch
from kerasmem.types import Dataset, Model, Tensor

_ARGUMENTS = ("x", "y", "sample_weight")


def fit_arguments(data: Dataset, batch_size: int = 32) -> dict[str, Any]:
    """Returns keyword arguments for `fit` and `evaluate`.

    `batch_size` is omitted for batched data.

    Example:
        >>> fit_arguments((x, y), batch_size=64)  # doctest: +SKIP
        {'x': x, 'y': y, 'batch_size': 64}
    """
    if not is_array_data(data):
        return {"x": data}
    return {**_named(data), "batch_size": batch_size}


def is_array_data(data: Dataset) -> bool:
    """Returns `True` for arrays in memory and `False` for an iterable of batches.

    Raises `DataError` if `data` is neither.
    """
    if _is_array(data) or isinstance(data, (tuple, list, dict)):
        return True
    if isinstance(data, (keras.utils.PyDataset, Iterable)) and not isinstance(
        data, (str, bytes)
    ):
        return False
    raise DataError(
        "Expected data as x, (x, y), (x, y, sample_weight), a tf.data.Dataset or a "
        f"keras.utils.PyDataset. Received: data={data!r} of type "
        f"{type(data).__name__}."
    )


class Batches(keras.utils.PyDataset):
    """Arrays in batches of a fixed size, for models that take no other size.

    The size must divide the number of samples.
    """

    def __init__(self, data: Dataset, size: int) -> None:
        super().__init__()
        self._data, self.size = data, size
        self.samples = sample_count(data) or 0

    def __len__(self) -> int:
        """Returns the number of batches."""
        return self.samples // self.size

    def __getitem__(self, index: int) -> tuple:
        """Returns one batch."""
        start = index * self.size
        # Keras on TensorFlow does not support lists in a batch.
        rows = slice(start, start + self.size)
        return keras.tree.lists_to_tuples(_cut(self._data, rows))


def _at_most(data: Dataset, count: int) -> int:
    return -(-count // data.size) * data.size if isinstance(data, Batches) else count


def in_fixed_batches(size: int | None, data: Dataset) -> Any:
    """Returns arrays in batches of a fixed size, and other data unchanged."""
    if size is None or data is None or not is_array_data(data):
        return data
    return data if (sample_count(data) or 0) % size else Batches(data, size)


def few_inputs(model: Model, data: Dataset, count: int = 1) -> Any:
    """Returns the inputs of one fixed batch, or of the first `count` samples."""
    return sample_inputs(data, fixed_batch(model) or count)


def sample_count(data: Dataset) -> int | None:
    """Returns the number of samples, or `None` if unknown without iteration."""
    if isinstance(data, Batches):
        return data.samples
    if not is_array_data(data):
        return None
    return length_of(_leaves(_named(data)["x"])[0])


def sample_inputs(data: Dataset, count: int) -> Any:
    """Returns the inputs of at most `count` first samples as NumPy arrays.

    Batched data provides at most its first batch. The structure equals `x`. Raises
    `DataError` if the data is empty, or is a generator, which can be read only once.
    """
    x = _named(data)["x"] if is_array_data(data) else _first_batch(data)[0]
    return _rows(x, 0, _at_most(data, count))


def input_batches(data: Dataset, count: int, batch_size: int) -> Iterator[Any]:
    """Yields the inputs of at most `count` first samples in batches of NumPy arrays.

    The structure equals `x`. `batch_size` applies to arrays only. See `sample_inputs`
    for errors.
    """
    sample_inputs(data, 1)  # raises an error for invalid data
    count = _at_most(data, count)
    for batch in inputs_from(data, 0, batch_size):
        x = _rows(batch, 0, count)
        yield x
        count -= length_of(_leaves(x)[0])
        if count <= 0:
            return


def inputs_from(data: Dataset, first: int, batch_size: int) -> Iterator[Any]:
    """Yields the inputs of all batches from the batch `first` on.

    The structure equals `x`. Inputs of array data are NumPy arrays.
    """
    if is_array_data(data):
        # Otherwise, several inputs in a list would be taken as inputs and labels.
        data = (_named(data)["x"],)
    for x, _, _ in labeled_batches(data, batch_size, first):
        yield x


def labeled_batches(
    data: Dataset, batch_size: int, first: int = 0
) -> Iterator[tuple[Any, Any, Any]]:
    """Yields inputs, labels and sample weights per batch, with `None` if missing."""
    if is_array_data(data):
        parts = [_named(data).get(name) for name in _ARGUMENTS]
        for start in range(first * batch_size, sample_count(data) or 0, batch_size):
            x, y, weight = (_rows(part, start, start + batch_size) for part in parts)
            yield x, y, weight
        return
    # Iterating over a PyDataset does not stop at its number of batches.
    if isinstance(data, keras.utils.PyDataset):
        batches: Iterator[Any] = map(data.__getitem__, _numbers(data, first))
    else:
        batches = islice(data, first, None)
    for batch in batches:
        x, y, weight = keras.utils.unpack_x_y_sample_weight(batch)
        yield keras.tree.map_structure(_dense, x), y, weight


def drawn_batches(
    data: Dataset, count: int, batch_size: int, *, part: int
) -> Iterator[tuple[Any, Any, Any]]:
    """Yields inputs, labels and weights of at most `count` samples as NumPy arrays.

    Samples of arrays and `PyDataset`s are drawn from all data with a fixed seed,
    because labels may be sorted. For other iterables, the first batches are used.
    `part` 0 has the even batches, `part` 1 the odd batches. A single batch belongs to
    both parts.
    """
    start = count = _at_most(data, count)
    for batch in islice(_drawn(data, batch_size), part, None, 2):
        x, y, weight = (_rows(array, 0, count) for array in batch)
        yield x, y, weight
        count -= length_of(_leaves(x)[0])
        if count <= 0:
            return
    if part and count == start:
        yield from drawn_batches(data, count, batch_size, part=0)


def _drawn(data: Dataset, batch_size: int) -> Iterator[tuple[Any, Any, Any]]:
    random = np.random.default_rng(0)
    if is_array_data(data):
        parts = [_named(data).get(name) for name in _ARGUMENTS]
        order = random.permutation(sample_count(data) or 0)
        size = min(batch_size, -(-len(order) // 2))  # at least one batch per part
        for start in range(0, len(order), size):
            x, y, weight = (_taken(p, order[start : start + size]) for p in parts)
            yield x, y, weight
        return
    batches = data
    if isinstance(data, keras.utils.PyDataset):
        numbers = _numbers(data)
        if isinstance(numbers, range):
            numbers = random.permutation(numbers).tolist()
        batches = map(data.__getitem__, numbers)
    yield from map(keras.utils.unpack_x_y_sample_weight, batches)


def _numbers(data: Dataset, first: int = 0) -> Iterable[int]:
    count = data.num_batches
    return numbers_from(first) if count is None else range(first, count)


def hold_out(data: Dataset, fraction: float = 0.1) -> tuple[tuple, tuple]:
    """Splits samples into `(train, held_out)`, with the last samples held out.

    The split is deterministic, without shuffling. At least one sample is held out.

    Raises `DataError` if the data is not in arrays, or has fewer than two samples.
    """
    if not is_array_data(data):
        raise DataError(
            "Samples can be held out only from arrays, not from "
            f"{type(data).__name__}. Next: pass separate validation data."
        )
    count = sample_count(data) or 0
    if count < 2:
        raise DataError(
            f"Expected at least 2 samples to hold some out. Received: {count}."
        )
    start = count - max(1, int(count * fraction))
    return _cut(data, slice(None, start)), _cut(data, slice(start, None))


def take(data: Dataset, rows: Any) -> tuple:
    """Returns the samples `rows` as `(x, y, sample_weight)` in NumPy arrays."""
    return tuple(_taken(part, rows) for part in _named(data).values())


def first_samples(data: Dataset) -> dict[str, Any]:
    """Returns `x`, `y` and `sample_weight` of all arrays, or of the first batch."""
    if is_array_data(data):
        return _named(data)
    batch = _first_batch(data)
    return dict(zip(_ARGUMENTS, batch, strict=True))


def holds_texts(x: Dataset) -> bool:
    """Returns whether inputs are strings."""
    leaves = keras.tree.flatten(x)
    dtypes = {str(getattr(leaf, "dtype", "")) for leaf in leaves}
    is_text = any(n.startswith(("<U", "|S", "object", "string")) for n in dtypes)
    return is_text or any(isinstance(leaf, str) for leaf in leaves)


def named_leaves(part: Any) -> dict[str, Any]:
    """Returns the arrays of a structure by path. A single array has the path `""`."""
    pairs = keras.tree.flatten_with_path(part)
    return {".".join(str(key) for key in path): leaf for path, leaf in pairs}


def _rows(x: Dataset, start: int, end: int) -> Any:
    def cut(array: Tensor) -> Any:
        if array is None:  # a missing optional input
            return None
        return keras.ops.convert_to_numpy(_dense(_as_array(array)[start:end]))

    return keras.tree.map_structure(cut, x)


def _taken(part: Any, rows: Any) -> Any:
    def taken(array: Tensor) -> Any:
        if array is None:  # a missing optional input
            return None
        if keras.ops.is_tensor(array):
            return keras.ops.convert_to_numpy(keras.ops.take(array, rows, axis=0))
        if isinstance(array, np.ndarray) or is_sparse(array):
            return _dense(array[rows])
        return keras.ops.convert_to_numpy(array)[rows]

    return keras.tree.map_structure(taken, part)


def _is_array(value: Any) -> bool:
    return hasattr(value, "shape") and (
        hasattr(value, "dtype") or hasattr(value, "__array__")
    )


def length_of(array: Tensor) -> int:
    """Returns the number of samples in a dense or sparse array, or in a list."""
    shape = getattr(array, "shape", None)
    return shape[0] if shape else len(array)


def _as_array(value: Any) -> Any:
    """Converts pandas objects to arrays and sparse tensors to SciPy CSR matrices.

    CSR matrices support slicing of rows.
    """
    if hasattr(value, "iloc"):
        return value.to_numpy()
    if hasattr(value, "dense_shape"):  # TensorFlow
        values, shape = value.values, tuple(map(int, value.dense_shape))
    elif is_sparse(value):
        return value if value.format == "csr" else value.tocsr()
    elif hasattr(value, "todense") and hasattr(value, "indices"):  # JAX
        values, shape = value.data, value.shape
    else:
        return value
    from scipy.sparse import csr_matrix

    indices = np.asarray(value.indices)
    if len(shape) != 2:
        raise DataError(f"Sparse samples have two axes. Received: shape {shape}.")
    return csr_matrix((np.asarray(values), tuple(indices.T)), shape)


def is_sparse(value: Any) -> bool:
    """Returns whether a value is a SciPy sparse matrix."""
    return hasattr(value, "toarray") and hasattr(value, "tocsr")


def _dense(value: Any) -> Any:
    value = _as_array(value)
    return value.toarray() if is_sparse(value) else value


def _named(data: Dataset) -> dict[str, Any]:
    parts = data if isinstance(data, tuple) else (data,)
    if not 1 <= len(parts) <= len(_ARGUMENTS) or not _leaves(parts[0]):
        raise DataError(
            "Expected a tuple (x,), (x, y) or (x, y, sample_weight), with arrays in "
            f"x. Received: a tuple of {len(parts)}. Next: pass several inputs in a "
            "dict or a list."
        )
    pairs = zip(_ARGUMENTS, parts, strict=False)
    return {
        name: keras.tree.map_structure(_as_array, part)
        for name, part in pairs
        if part is not None
    }


def _first_batch(data: Dataset) -> tuple[Any, Any, Any]:
    if isinstance(data, Iterator):
        raise DataError(
            "A generator can be read only once, and its samples are needed twice. "
            f"Received: {type(data).__name__}. Next: pass arrays, a tf.data.Dataset or "
            "a keras.utils.PyDataset."
        )
    batches = iter([data[0]]) if isinstance(data, keras.utils.PyDataset) else iter(data)
    batch = next(batches, None)
    if batch is None:
        raise DataError(f"The data is empty. Received: {type(data).__name__}.")
    return keras.utils.unpack_x_y_sample_weight(batch)


def _cut(data: Dataset, rows: slice) -> tuple:
    return tuple(
        keras.tree.map_structure(lambda array: array[rows], part)
        for part in _named(data).values()
    )


def _leaves(part: Any) -> list[Any]:
    return [leaf for leaf in keras.tree.flatten(part) if leaf is not None]
