"""Keeps clustered weights equal during training, inside the compiled step.

After each update, every cluster moves to the mean of its updated entries. This is
equivalent to one shared weight with the mean gradient.

Source: Han, Mao, Dally: Deep Compression: Compressing Deep Neural Networks with
Pruning, Trained Quantization and Huffman Coding, 2016.
"""

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import numpy as np
from keras import ops

from kerasmem.backends import current
from kerasmem.compression.cluster import Cluster
from kerasmem.compression.cluster.apply import channel_axis, chosen
from kerasmem.compression.working import constrain
from kerasmem.graph.layers import Weight
from kerasmem.graph.values import to_numpy
from kerasmem.types import Model, Optimizer


@contextmanager
def preserve_clusters(config: Cluster, model: Model, trainer: Model) -> Iterator[None]:
    """Keeps the entries of each cluster equal while `trainer` trains `model`."""
    selection, _ = chosen(model, config)
    with ExitStack() as scopes:
        scopes.callback(setattr, trainer, "train_function", None)
        ties: list[_Tied] = []
        for number, weight in enumerate(selection):
            name = f"kerasmem_codes_{number}"
            ties.append(_Tied(trainer.optimizer, weight, config, name))
            scopes.callback(ties[-1].release)
        trainer.train_function = None
        yield
        for tie in ties:
            tie.enforce()


class _Tied:
    """Constraint that keeps the entries of each cluster of a weight equal."""

    def __init__(
        self, optimizer: Optimizer, weight: Weight, config: Cluster, name: str
    ) -> None:
        variable = weight.variable
        codes, offsets, values = _numbered(
            to_numpy(variable), channel_axis(weight, config)
        )
        whole = (codes + offsets).ravel()
        self._variable = variable
        self._offsets = offsets
        self._sizes = np.maximum(np.bincount(whole, minlength=len(values)), 1)
        self._first = np.zeros(len(values), int)  # index of one entry per cluster
        self._first[whole[::-1]] = np.arange(len(whole))[::-1]
        # Zeros must stay zero, unless `keep_zeros` is `False`.
        self._moves = np.logical_or(values != 0, not config.keep_zeros)
        smallest = np.min_scalar_type(max(int(codes.max()), 0))
        self._codes = current().step_state(
            optimizer, codes.astype(smallest), name, variable
        )
        self._undo = constrain(variable, self)

    def __call__(self, value: Any) -> Any:
        """Returns the updated weight with each entry replaced by its cluster mean."""
        codes = ops.cast(self._codes.variable.value, "int32")
        codes += ops.convert_to_tensor(self._offsets, "int32")
        codes = ops.reshape(codes, (-1,))
        flat = ops.cast(ops.reshape(value, (-1,)), "float32")
        # Sums of differences to one entry stay accurate in float32.
        one = ops.take(flat, ops.convert_to_tensor(self._first, "int32"))
        away = ops.segment_sum(
            flat - ops.take(one, codes), codes, num_segments=len(self._sizes)
        )
        means = one + away / ops.convert_to_tensor(self._sizes, "float32")
        means *= ops.convert_to_tensor(self._moves, "float32")
        return ops.reshape(ops.take(ops.cast(means, value.dtype), codes), value.shape)

    def enforce(self) -> None:
        """Moves all clusters to their means after a direct assignment of the weight."""
        codes = (self._codes.read().astype(int) + self._offsets).ravel()
        value = to_numpy(self._variable)
        sums = np.bincount(codes, value.ravel(), minlength=len(self._sizes))
        means = (sums * self._moves / self._sizes).astype(value.dtype)
        self._variable.assign(means[codes].reshape(value.shape))

    def release(self) -> None:
        """Removes the constraint."""
        self._undo()
        self._codes.release()


def _numbered(
    value: np.ndarray, axis: int | None
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Returns the index of each entry in its row of values, row offsets, and all rows.

    The offsets broadcast against the indices.
    """
    if axis is None:
        values, codes = np.unique(value, return_inverse=True)
        return codes.reshape(value.shape), np.zeros(1, int), values
    codes, rows = [], []
    for channel in np.moveaxis(value, axis, 0):
        row, places = np.unique(channel, return_inverse=True)
        codes.append(places.reshape(channel.shape))
        rows.append(row)
    shape = [1] * value.ndim
    shape[axis] = len(rows)
    begins = np.cumsum([0, *map(len, rows[:-1])]).reshape(shape)
    return np.stack(codes, axis), begins, np.concatenate(rows)
