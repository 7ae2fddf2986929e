"""Loss of an output layer with chunked logits, which also updates its accuracy."""

from typing import Any

import keras
from keras import ops

from kerasmem.checks import Real, invalid
from kerasmem.errors import ConfigError
from kerasmem.extras.chunked.chunks import crossentropy
from kerasmem.extras.chunked.vocabulary import head_and_states
from kerasmem.graph.masks import mask_of
from kerasmem.types import Tensor


@keras.saving.register_keras_serializable("kerasmem")
class ChunkedCrossentropy(keras.losses.Loss):
    """Cross-entropy of integer labels and the output of `ChunkedVocabulary`.

    The gradients and the accuracy are computed with the loss, a few rows at a time. For
    any other output, the loss is `SparseCategoricalCrossentropy(from_logits=True)`.

    Args:
        label_smoothing: Float in [0, 1]. Fraction of each label that is spread evenly
            over all words. Defaults to 0.
        ignore_class: Int or None. Label to ignore. Defaults to None.
        name: String. Name of the loss.

    Raises:
        ConfigError: If an argument is out of range, or the labels are not one integer
            per state.

    Example:
        >>> loss = ChunkedCrossentropy()
        >>> print(f"{float(loss(np.array([[1]]), np.array([[[0.0, 0.0]]]))):.4f}")
        0.6931
    """

    def __init__(
        self,
        label_smoothing: float = 0.0,
        ignore_class: int | None = None,
        name: str = "chunked_crossentropy",
        **kwargs: Any,
    ) -> None:
        super().__init__(name=name, **kwargs)
        owner, share = "ChunkedCrossentropy", Real(least=0, most=1)
        if ignore_class is not None and type(ignore_class) is not int:
            raise invalid(owner, "ignore_class", ignore_class, "an int or None")
        self.label_smoothing = share.check(owner, "label_smoothing", label_smoothing)
        self.ignore_class = ignore_class

    def __call__(
        self, y_true: Tensor, y_pred: Tensor, sample_weight: Tensor = None
    ) -> Any:
        """Return the mean loss of all counted labels as a float32 scalar."""
        head, states = head_and_states(y_pred)
        labels, weights, counts = _flat(
            y_true, y_pred, sample_weight, self.ignore_class
        )
        rows = ops.reshape(states, (-1, states.shape[-1]))
        count = ops.maximum(ops.sum(counts), 1.0)
        if head is None:
            logits = ops.cast(rows, "float32")
            # Labels with zero weight may be out of range.
            valid = ops.where(ops.equal(weights, 0), 0, labels)
            own = ops.sparse_categorical_crossentropy(valid, logits, from_logits=True)
            others = ops.logsumexp(logits, axis=-1) - ops.mean(logits, axis=-1)
            share = self.label_smoothing
            losses = (1 - share) * own + share * others
            return ops.sum(losses * weights) / count
        total, hits = crossentropy(
            rows, head.table, labels, weights, counts, self.label_smoothing
        )
        head.accuracy.update_state(hits / count, sample_weight=ops.sum(counts))
        return total / count

    def get_config(self) -> dict[str, Any]:
        """Return the arguments of the constructor."""
        return {
            **super().get_config(),
            "label_smoothing": self.label_smoothing,
            "ignore_class": self.ignore_class,
        }


def _flat(
    y_true: Tensor, y_pred: Tensor, sample_weight: Tensor, ignored: int | None
) -> tuple[Any, Any, Any]:
    y_true = ops.convert_to_tensor(y_true)
    if keras.backend.standardize_dtype(y_true.dtype) != "int64":
        y_true = ops.cast(y_true, "int32")
    if len(y_true.shape) == len(y_pred.shape) and y_true.shape[-1] in (1, None):
        y_true = ops.squeeze(y_true, axis=-1)
    if len(y_true.shape) != len(y_pred.shape) - 1:
        shapes = tuple(y_true.shape), tuple(y_pred.shape)
        raise ConfigError(
            "The labels do not fit the predictions. Expected: the shape of the "
            f"predictions without the last axis. Received: labels of {shapes[0]}, "
            f"predictions of {shapes[1]}. Next: use np.argmax for one-hot labels."
        )
    counts = ops.ones_like(y_true, "float32")
    mask = mask_of(y_pred)
    if mask is not None:
        counts = counts * ops.cast(mask, "float32")
    if ignored is not None:
        counts = counts * ops.cast(ops.not_equal(y_true, ignored), "float32")
    weights = counts
    if sample_weight is not None:
        own = ops.cast(ops.convert_to_tensor(sample_weight), "float32")
        missing = len(y_true.shape) - len(own.shape)
        if missing < 0:
            own = ops.squeeze(own, axis=-1)
        own = ops.reshape(own, (*ops.shape(own), *(1 for _ in range(missing))))
        weights = counts * own
    labels, *both = (ops.reshape(x, (-1,)) for x in (y_true, weights, counts))
    return labels, *both
