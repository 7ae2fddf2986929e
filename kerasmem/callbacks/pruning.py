"""Pruning on a schedule inside the user's own `fit`."""

from typing import Any

import keras

from kerasmem.callbacks.attachment import Attachment
from kerasmem.callbacks.guard import tell
from kerasmem.compression.prune.apply import masks_for, prunable
from kerasmem.compression.prune.config import Prune
from kerasmem.compression.prune.masks import Masks
from kerasmem.compression.prune.math import cubic_sparsity
from kerasmem.errors import ConfigError, ModelError

_UPDATES = 50


class Pruning(keras.callbacks.Callback):
    """Prunes the model while it trains; it stays a plain Keras model throughout.

    Weights are sparse after every update, so in every checkpoint too. The sparsity
    rises from 0 to `prune.sparsity` over the part of the training from `prune.begin` to
    `prune.end`, in at most 50 steps, fast at first (Zhu and Gupta, "To prune, or not to
    prune", 2017). After `fit` nothing is left on the model but its zeros.

    List it last, behind callbacks that set weights: `EarlyStopping` with
    `restore_best_weights=True`, listed after it, brings back the weights of an epoch
    that may have been less sparse, and nobody is left to prune them.

    | key in `logs` | what it is |
    |---|---|
    | `sparsity` | share of zeros aimed at in the pruned weights, 0 to 1 |

    Cost: one bool per pruned weight; one multiplication per update. On JAX each of the
    50 steps costs one synchronization of the model's state.

    Args:
        prune: what to prune and when.

    Raises:
        ConfigError: if `prune` is no `Prune`.
        ModelError: at the start of `fit`, if the model has no weights yet, or none to
            prune.

    Example:
        >>> model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(5)])
        >>> model.compile("sgd", "mse")
        >>> x, y = keras.ops.ones((8, 4)), keras.ops.ones((8, 5))
        >>> history = model.fit(x, y, verbose=0, callbacks=[Pruning(Prune(0.5))])
        >>> int((keras.ops.convert_to_numpy(model.layers[0].kernel) == 0).sum())
        10
    """

    async_safe = True

    def __init__(self, prune: Prune) -> None:
        super().__init__()
        if not isinstance(prune, Prune):
            raise ConfigError(
                f"Pruning takes a Prune, such as Prune(0.8). Received: prune={prune!r}."
            )
        self.prune = prune
        self.sparsity = 0.0
        self._attachment: Attachment | None = None
        self._masks: Any = None
        self._variables: list[Any] = []
        self._epoch = 0

    def on_train_begin(self, logs: Any = None) -> None:
        """Put masks on the weights that are to be pruned."""
        model = self.model
        self.detach()
        if not model.built:
            raise ModelError(
                f"The model {model.name!r} has no weights to prune yet. Build it "
                "before fit: call it on a batch, or give it an Input."
            )
        self.sparsity = 0.0
        self._variables = [w.variable for w in prunable(model, self.prune)]
        self._masks = Masks(model, self._variables)
        self._attachment = Attachment(model, self._masks.release)

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        """Note the epoch, and prune where the number of its steps is not known."""
        self._epoch = epoch
        if not self._steps:
            self._raise_to(epoch / self._epochs)

    def on_train_batch_begin(self, batch: int, logs: Any = None) -> None:
        """Prune further if it is time."""
        if self._steps:
            done = self._epoch * self._steps + batch
            self._raise_to(done / (self._epochs * self._steps))

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        """Write the sparsity into `logs`."""
        if epoch + 1 == self._epochs:
            self._raise_to(1.0)
        if logs is not None:
            logs["sparsity"] = self.sparsity

    def on_train_end(self, logs: Any = None) -> None:
        """Mask once more what an average of the weights may have written; let go."""
        if self._attachment is not None:
            self._masks.enforce()
        if self.sparsity < self.prune.sparsity:
            tell(
                "Training ended before pruning did: the sparsity is "
                f"{self.sparsity:.3f} instead of {self.prune.sparsity:.3f}. Train "
                "longer, or set end= of Prune to an earlier part of the training."
            )
        self.detach()

    def detach(self) -> None:
        """Take the masks off the model now; the weights keep their zeros."""
        if self._attachment is not None:
            self._attachment.release()
            self._attachment = None

    @property
    def _epochs(self) -> int:
        return self.params["epochs"]

    @property
    def _steps(self) -> int | None:
        return self.params.get("steps")

    def _raise_to(self, progress: float) -> None:
        """Prune as far as is due when `progress` (0 to 1) of the training is done."""
        sparsity = self._due(progress)
        if sparsity <= self.sparsity:
            return
        # On JAX this fetches the weights from the running epoch; not in every batch.
        _ = self.model
        masks = masks_for(self._variables, self.prune, sparsity)
        self._masks.write(masks)
        self.sparsity = sparsity

    def _due(self, progress: float) -> float:
        begin, end = self.prune.begin, self.prune.end
        if progress < begin:
            return 0.0
        if progress >= end:
            return self.prune.sparsity
        part = int(_UPDATES * (progress - begin) / (end - begin)) / _UPDATES
        return cubic_sparsity(part, self.prune.sparsity)
