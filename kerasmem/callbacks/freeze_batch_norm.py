"""Frozen batch normalization statistics for the end of a training."""

from typing import Any

import keras

from kerasmem.backends.patching import LayerCall, observe_calls
from kerasmem.callbacks.attachment import AttachedCallback
from kerasmem.checks import Real
from kerasmem.graph.flat_calls import flatten
from kerasmem.graph.layers import own_graph, sublayers
from kerasmem.types import Logs, Model


class FreezeBatchNorm(AttachedCallback):
    """A callback that freezes batch normalization statistics from a given epoch on.

    The moving mean and variance keep their values, and training batches are normalized
    with them, as in inference. Gamma and beta are still trained. Use this callback for
    the last epochs of quantization-aware training.

    The epoch index decides, so a resumed training freezes at the same epoch. Layers
    that are called with `training=True` use batch statistics in inference and are not
    frozen.

    Source: Krishnamoorthi, "Quantizing deep convolutional networks for efficient
    inference: A whitepaper", 2018.

    Args:
        after: Float in [0, 1]. Fraction of the epochs before the statistics are frozen.
            0 freezes at once, 1 never. Defaults to 0.5.

    Raises:
        ConfigError: If `after` is outside [0, 1].

    Example:
        >>> callbacks = [FreezeBatchNorm(0.5)]
    """

    def __init__(self, after: float = 0.5) -> None:
        super().__init__()
        Real(least=0, most=1).check("FreezeBatchNorm", "after", after)
        self._after = after

    def on_epoch_begin(self, epoch: int, logs: Logs = None) -> None:
        """Freeze the statistics if the epoch has been reached."""
        is_due = epoch >= self._after * self.params["epochs"]
        if is_due and self._attachment is None:
            always = _always_trained(self.model)
            norms = [
                layer
                for layer in sublayers(self.model)
                if isinstance(layer, keras.layers.BatchNormalization)
                and id(layer) not in always
            ]
            self.attach(self.model, observe_calls(norms, inputs=_in_inference))


def _in_inference(call: LayerCall) -> Any:
    return call.run(training=False)


def _always_trained(model: Model) -> set[int]:
    if own_graph(model) is None:
        return set()
    return {id(call.operation) for call in flatten(model).calls if call.is_trained}
