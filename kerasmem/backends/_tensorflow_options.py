"""How TensorFlow rewrites a step, spreads it and feeds it."""

from contextlib import AbstractContextManager
from typing import Any

import tensorflow as tf

GRAPH_OPTIONS = {
    "layout optimizer": "layout_optimizer",
    "constant folding": "constant_folding",
}
"""Passes of the graph optimizer that can be left out, by what a user calls them."""


def leave_out(option: str) -> None:
    """Leave a pass out of what this process makes of its graphs.

    Args:
        option: one of `GRAPH_OPTIONS`.
    """
    tf.config.optimizer.set_experimental_options({GRAPH_OPTIONS[option]: False})


def data_parallel() -> AbstractContextManager[Any]:
    """Return the scope in which a model is made that trains on every device."""
    kind = "GPU" if tf.config.list_logical_devices("GPU") else "CPU"
    names = [device.name for device in tf.config.list_logical_devices(kind)]
    return tf.distribute.MirroredStrategy(names).scope()


def repeated(batch: Any) -> Any:
    """Return a dataset of the same batch, again and again."""
    return tf.data.Dataset.from_tensors(batch).repeat()
