"""Keeping entries of one value alike while the model trains, inside the compiled step.

After every update each cluster moves to the mean of what its entries became, as if they
were one weight with the mean of their gradients (Han, Mao, Dally: Deep Compression:
Compressing Deep Neural Networks with Pruning, Trained Quantization and Huffman Coding,
2016).
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import numpy as np
from keras import ops

from kerasmem.backends import current
from kerasmem.compression.cluster.apply import channel_axis
from kerasmem.graph.layers import Weight
from kerasmem.graph.values import to_numpy

if TYPE_CHECKING:
    from kerasmem.compression.cluster.config import Cluster


@contextmanager
def clusters_kept(
    trainer: Any, weights: Sequence[Weight], choice: "Cluster"
) -> Iterator[None]:
    """Keep entries alike that are equal now.

    Args:
        trainer: the compiled model that `fit` is called on.
        weights: clustered weights that it trains.
        choice: how they were clustered.
    """
    by_channel = choice.granularity == "channel"
    ties = []
    try:
        for number, weight in enumerate(weights):
            axis = channel_axis(weight) if by_channel else None
            ties.append(_Tied(trainer.optimizer, weight.variable, axis, choice, number))
        trainer.train_function = None
        yield
        for tie in ties:
            tie.enforce()
    finally:
        for tie in reversed(ties):
            tie.release()
        trainer.train_function = None


class _Tied:
    """The constraint of one weight, behind its own if it has one."""

    def __init__(
        self, optimizer: Any, variable: Any, axis: int | None, choice: "Cluster", n: int
    ) -> None:
        codes, values = _numbered(to_numpy(variable), axis)
        self._variable = variable
        self._own = variable.constraint
        self._sizes = np.maximum(np.bincount(codes.ravel(), minlength=len(values)), 1)
        # What is zero stays zero, unless zeros are values like all others.
        self._moves = np.logical_or(values != 0, not choice.keep_zeros)
        smallest = np.min_scalar_type(len(values))
        self._codes = current().step_state(
            optimizer, codes.astype(smallest), f"kerasmem_codes_{n}", variable
        )
        variable.constraint = self

    def __call__(self, value: Any) -> Any:
        """Return an updated value of the weight with the mean in every cluster."""
        value = ops.convert_to_tensor(value if self._own is None else self._own(value))
        codes = ops.cast(ops.reshape(self._codes.variable.value, (-1,)), "int32")
        flat = ops.cast(ops.reshape(value, (-1,)), "float32")
        sums = ops.segment_sum(flat, codes, num_segments=len(self._sizes))
        factors = ops.convert_to_tensor(self._moves / self._sizes, "float32")
        means = ops.cast(sums * factors, value.dtype)
        return ops.reshape(ops.take(means, codes), value.shape)

    def enforce(self) -> None:
        """Move clusters to their means once more, where weights were set otherwise."""
        codes = self._codes.read().ravel().astype(int)
        value = to_numpy(self._variable)
        sums = np.bincount(codes, value.ravel(), minlength=len(self._sizes))
        means = (sums * self._moves / self._sizes).astype(value.dtype)
        self._variable.assign(means[codes].reshape(value.shape))

    def release(self) -> None:
        """Let the weight change freely again."""
        if self._variable.constraint is self:
            self._variable.constraint = self._own
        self._codes.release()


def _numbered(value: np.ndarray, axis: int | None) -> tuple[np.ndarray, np.ndarray]:
    """Return the number of each entry's value, and the values by their numbers."""
    if axis is None:
        values, codes = np.unique(value, return_inverse=True)
        return codes.reshape(value.shape), values
    codes, values, count = [], [], 0
    for channel in np.moveaxis(value, axis, 0):
        found, places = np.unique(channel, return_inverse=True)
        codes.append(count + places.reshape(channel.shape))
        values.append(found)
        count += len(found)
    return np.stack(codes, axis), np.concatenate(values)
