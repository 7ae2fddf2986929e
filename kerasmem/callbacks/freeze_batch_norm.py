"""BatchNormalization that ends its training as inference will compute it."""

from typing import Any

import keras

from kerasmem.backends.patching import LayerCall, observe_calls
from kerasmem.callbacks.attachment import AttachedCallback
from kerasmem.checks import Real
from kerasmem.graph.flat_calls import flatten
from kerasmem.graph.layers import own_graph, sublayers
from kerasmem.types import Logs, Model


class FreezeBatchNorm(AttachedCallback):
    """A callback that freezes the statistics of batch normalization from an epoch on.

    They change no more. Scale and offset go on training. For the last part of a
    quantization-aware training: inference normalizes by them too. It goes by the number
    of the epoch, so it freezes in a training that is resumed as it would have before. A
    layer that is called with `training=True` takes the statistics of a batch in
    inference as well, and goes on so.

    Source: Krishnamoorthi, "Quantizing deep convolutional networks for efficient
    inference: A whitepaper", 2018.

    Args:
        after: share of the epochs after which it does, 0 for at once to 1 for never.

    Raises:
        ConfigError: if `after` is out of its range.

    Example:
        >>> callbacks = [FreezeBatchNorm(0.5)]
    """

    def __init__(self, after: float = 0.5) -> None:
        super().__init__()
        Real(least=0, most=1).check("FreezeBatchNorm", "after", after)
        self._after = after

    def on_epoch_begin(self, epoch: int, logs: Logs = None) -> None:
        """Freeze the layers if it is time."""
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
