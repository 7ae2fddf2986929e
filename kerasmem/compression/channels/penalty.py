"""A penalty in training that makes whole channels small, so that they can go.

Sources: Wen, Wu, Wang, Chen and Li, "Learning Structured Sparsity in Deep Neural
Networks", 2016 (group lasso); Liu, Li, Shen, Huang, Yan and Zhang, "Learning Efficient
Convolutional Networks through Network Slimming", 2017 (the scale of
BatchNormalization).
"""

from collections.abc import Callable
from typing import Any

import keras
import numpy as np

from kerasmem.compression.channels.apply import with_graph
from kerasmem.compression.channels.scores import is_scale
from kerasmem.errors import ModelError
from kerasmem.graph.channels import Groups, label_channels
from kerasmem.graph.channels.groups import find_groups
from kerasmem.graph.channels.labels import OUT
from kerasmem.types import Model

PENALTIES = ("group_lasso", "batch_norm")

_SMALL = 1e-12
"""Added under the root, which has no slope at zero."""


class ChannelPenalty:
    """The sum over all channels that could be removed of how large they are.

    Channels that go together, in however many layers, count as one.

    Args:
        model: a built model.
        kind: `"group_lasso"`: the L2 norm of all entries that make a channel;
            `"batch_norm"`: the size of its scale.

    Raises:
        ModelError: if nothing could be removed, or no channel has a scale.
    """

    def __init__(self, model: Model, kind: str) -> None:
        labels = label_channels(with_graph(model)).labels
        groups = find_groups(labels)
        self._is_norm = kind == "group_lasso"
        self._count = sum(map(len, groups.members))
        place = _places(groups)
        self._parts = [
            (use.variable, place[groups.classes[use.labels]])
            for use in labels.uses
            if (use.role == OUT if self._is_norm else is_scale(use))
            and (place[groups.classes[use.labels]] < self._count).any()
        ]
        trainable_ids = {id(variable) for variable in model.trainable_variables}
        self._parts = [part for part in self._parts if id(part[0]) in trainable_ids]
        if not self._parts:
            raise ModelError(
                f"No channel of the model {model.name!r} that could be removed has "
                f"weights to make small. Received: penalty={kind!r}."
            )

    def __call__(self) -> Any:
        """Return the penalty, a float32 scalar tensor, where variables stand now."""
        total: Any = 0.0
        for variable, places in self._parts:
            value = keras.ops.cast(keras.ops.convert_to_tensor(variable), "float32")
            value = keras.ops.square(value) if self._is_norm else keras.ops.abs(value)
            alone = tuple(axis for axis, size in enumerate(places.shape) if size == 1)
            sums = keras.ops.sum(value, alone) if alone else value
            total = total + keras.ops.segment_sum(
                keras.ops.reshape(sums, (-1,)), places.ravel(), self._count + 1
            )
        sizes = total[: self._count]
        return keras.ops.sum(keras.ops.sqrt(sizes + _SMALL) if self._is_norm else sizes)

    def added_to_loss(self, strength: float) -> Callable[[], None]:
        """Add `strength` times the penalty to the model's loss; return the undo."""
        # Keras adds what the regularizer of a variable returns, on every backend and
        # in every precision; one variable stands for all.
        variable = self._parts[0][0]
        before = variable.regularizer

        def penalized(value: Any) -> Any:
            own = 0.0 if before is None else before(value)
            return own + strength * self()

        variable.regularizer = penalized

        def undo() -> None:
            variable.regularizer = before

        return undo


def _places(groups: Groups) -> np.ndarray:
    members = np.concatenate([np.zeros(0, np.int64), *groups.members])
    place = np.full(len(groups.classes), len(members), "int32")
    place[members] = np.arange(len(members))
    return place
