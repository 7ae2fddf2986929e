"""How TensorFlow rewrites a step, spreads it and feeds it."""

from contextlib import AbstractContextManager
from typing import Any

import tensorflow as tf

from kerasmem.backends.options import StepOptions


class TensorFlowOptions(StepOptions):
    """What can be chosen of a step in TensorFlow."""

    graph_passes = {  # noqa: RUF012 - never changed
        "layout optimizer": "layout_optimizer",
        "constant folding": "constant_folding",
    }

    def leave_out(self, graph_pass: str) -> None:
        """Leave a pass out of what this process makes of its graphs."""
        name = self.graph_passes[graph_pass]
        tf.config.optimizer.set_experimental_options({name: False})

    def data_parallel(self) -> AbstractContextManager[Any]:
        """Return the scope in which a model is made that trains on every device."""
        kind = "GPU" if tf.config.list_logical_devices("GPU") else "CPU"
        names = [device.name for device in tf.config.list_logical_devices(kind)]
        return tf.distribute.MirroredStrategy(names).scope()

    def repeated(self, batch: Any) -> Any:
        """Return a dataset of the same batch.

        Keras would copy what a generator gives ahead of its use, and the allocator
        would count the copies.
        """
        return tf.data.Dataset.from_tensors(batch).repeat()
