"""Sparsity penalty on whole channels, for training before channel pruning."""

import keras

from kerasmem.callbacks.attachment import AttachedCallback
from kerasmem.checks import OneOf, Real
from kerasmem.compression.channels.penalty import PENALTIES, ChannelPenalty
from kerasmem.types import Logs


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
