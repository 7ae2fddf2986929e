"""Sparsity penalty on whole channels, for training before channel pruning.

The penalty shrinks whole channels, so that their removal changes the output little.

Sources: Wen, Wu, Wang, Chen and Li, "Learning Structured Sparsity in Deep Neural
Networks", 2016 (group lasso); Liu, Li, Shen, Huang, Yan and Zhang, "Learning Efficient
Convolutional Networks through Network Slimming", 2017 (the scale of
BatchNormalization).
"""

from collections.abc import Callable
from typing import Any

import keras
import numpy as np

from kerasmem.callbacks.attachment import AttachedCallback
from kerasmem.checks import OneOf, Real
from kerasmem.compression.channels.apply import with_graph
from kerasmem.compression.channels.scores import is_scale
from kerasmem.errors import ModelError
from kerasmem.graph.channels import Groups, label_channels
from kerasmem.graph.channels.groups import find_groups
from kerasmem.graph.channels.labels import OUT
from kerasmem.types import Logs, Model

PENALTIES = ("group_lasso", "batch_norm")

_SMALL = 1e-12
"""Added under the square root, which has no gradient at zero."""


class ChannelPenalty:
    """Sum of the norms of all removable channels.

    Channels that must be removed together count as one channel.

    Args:
        model: A built model.
        kind: `"group_lasso"` for the L2 norm of the weights that compute a channel, or
            `"batch_norm"` for the absolute value of its scale.
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
                f"The model {model.name!r} has no removable channels with weights to "
                f"penalize. Received: penalty={kind!r}."
            )

    def __call__(self) -> Any:
        """Returns the current penalty, a float32 scalar tensor."""
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
        """Adds `strength` times the penalty to the model's loss. Returns the undo."""
        # Keras adds the regularizer of a variable to the loss, on every backend and in
        # every precision. The regularizer of one variable returns the whole penalty.
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


class ChannelSparsity(AttachedCallback):
    """A callback that adds a sparsity penalty on whole channels to the loss.

    Use this callback for a training before `km.PruneChannels`: channels with small
    weights can be removed with little loss of accuracy. After `fit`, the model has its
    original loss.

    | key in `logs` | value |
    |---|---|
    | `channel_penalty` | sum of the penalty over all channels, without `strength` |

    Args:
        strength: Float above 0. Factor of the penalty in the loss, usually 1e-5 to
            1e-3. Defaults to 1e-4.
        penalty: One of `"group_lasso"` and `"batch_norm"`. `"group_lasso"` is the L2
            norm of all weights of a channel, over all layers with the channel (Wen et
            al., "Learning Structured Sparsity in Deep Neural Networks", 2016).
            `"batch_norm"` is the absolute scale of BatchNormalization (Liu et al.,
            "Learning Efficient Convolutional Networks through Network Slimming", 2017).
            Defaults to `"group_lasso"`.

    Raises:
        ConfigError: If an argument is invalid.
        ModelError: At the start of `fit`, if the model has no such channels.

    Example:
        >>> layers = [keras.layers.Dense(5), keras.layers.Dense(1)]
        >>> model = keras.Sequential([keras.Input((4,)), *layers])
        >>> model.compile("sgd", "mse")
        >>> x, y = keras.ops.ones((8, 4)), keras.ops.ones((8, 1))
        >>> sparse = ChannelSparsity(1e-3)
        >>> history = model.fit(x, y, verbose=0, callbacks=[sparse]).history
        >>> sorted(history)
        ['channel_penalty', 'loss']
    """

    def __init__(self, strength: float = 1e-4, *, penalty: str = "group_lasso") -> None:
        super().__init__()
        Real(above=0).check("ChannelSparsity", "strength", strength)
        OneOf(tuple(PENALTIES)).check("ChannelSparsity", "penalty", penalty)
        self._strength = strength
        self._kind = penalty
        self._penalty: ChannelPenalty | None = None

    def on_train_begin(self, logs: Logs = None) -> None:
        """Add the penalty to the loss."""
        super().on_train_begin(logs)
        self._penalty = ChannelPenalty(self.model, self._kind)
        self.attach(self.model, self._penalty.added_to_loss(self._strength))

    def on_epoch_end(self, epoch: int, logs: Logs = None) -> None:
        """Write the penalty into `logs`."""
        if logs is not None and self._penalty is not None:
            # On JAX, reading `self.model` copies the current weights into the model.
            _ = self.model
            logs["channel_penalty"] = float(keras.ops.convert_to_numpy(self._penalty()))
