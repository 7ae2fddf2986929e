"""Output layer of a language model, and its loss, which also updates its accuracy.

The layer returns states in training and logits in inference.
"""

import weakref
from dataclasses import replace
from typing import Any

import keras
from keras import ops

from kerasmem.checks import Real, Whole, invalid
from kerasmem.errors import ConfigError
from kerasmem.extras.chunked.chunks import VocabularyTable, best_words, crossentropy
from kerasmem.graph.channels.tied import Tied
from kerasmem.graph.computed import ComputedVariable
from kerasmem.graph.masks import mask_of
from kerasmem.types import Layer, Tensor, Tensors

_HEADS: dict[int, tuple[Any, Any]] = {}
"""Head and, in inference, its input states by the id of the output tensor."""


@keras.saving.register_keras_serializable("kerasmem")
class ChunkedVocabulary(keras.layers.Layer, Tied):
    """Output layer for a large vocabulary that never holds all logits in training.

    In training, the layer returns its input states. `ChunkedCrossentropy` then computes
    the logits, the loss and its gradients for a few rows at a time. In inference, the
    layer returns logits of shape `(..., words)` or the top-k words. A compiled
    `evaluate` with only this loss computes no full logits either. The loss also updates
    the metric `accuracy`.

    Source: Wijmans, Huval, Hertzberg, Koltun and Krähenbühl, "Cut Your Losses in
    Large-Vocabulary Language Models", 2024.

    Args:
        embedding_or_units: `Embedding` or `ReversibleEmbedding` whose table is shared.
            Or a KerasHub backbone used in the model, whose `token_embedding` is shared.
            Or an int, the number of words of a new kernel.
        top_k: Int or None. If set, inference returns the `top_k` largest logits and
            their words, each of shape `(..., top_k)`. Such a model cannot be trained or
            evaluated. Defaults to None, which returns all logits.
        logit_soft_cap: Float or None. Smooth limit of the logits. Defaults to the limit
            of the embedding, if any.
        kernel_initializer: Initializer of the new kernel. Defaults to
            `"glorot_uniform"`.
        **kwargs: Arguments of the base layer, such as `name` and `dtype`.

    Raises:
        ConfigError: If `embedding_or_units` has another type, `top_k` is out of range,
            or a layer with `top_k` is called in training.

    Example:
        >>> tokens = keras.Input((None,), dtype="int32")
        >>> table = keras.layers.Embedding(1000, 8)
        >>> model = keras.Model(tokens, ChunkedVocabulary(table)(table(tokens)))
        >>> model.output_shape
        (None, None, 1000)
    """

    def __init__(
        self,
        embedding_or_units: Any,
        *,
        top_k: int | None = None,
        logit_soft_cap: float | None = None,
        kernel_initializer: Any = "glorot_uniform",
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.supports_masking = True
        self.embedding: Any = None
        self.units: int | None = None
        # Bypasses Keras's tracking: the layer belongs to the model, not to this layer.
        object.__setattr__(self, "_told_by", embedding_or_units)
        if isinstance(embedding_or_units, keras.Model):
            embedding_or_units = getattr(embedding_or_units, "token_embedding", None)
        if isinstance(embedding_or_units, keras.layers.Embedding):
            self.embedding = embedding_or_units
            logit_soft_cap = logit_soft_cap or getattr(
                embedding_or_units, "logit_soft_cap", None
            )
        else:
            what = "an Embedding, a backbone with a `token_embedding`, or a number"
            rule, name = Whole(1, what=what), "embedding_or_units"
            self.units = rule.check("ChunkedVocabulary", name, self._told_by)
        words = self.units or self.embedding.input_dim
        if top_k is not None:
            top_k = Whole(1, words).check("ChunkedVocabulary", "top_k", top_k)
        self.top_k, self.logit_soft_cap = top_k, logit_soft_cap
        self.kernel_initializer = keras.initializers.get(kernel_initializer)
        self.accuracy = keras.metrics.Mean("accuracy")

    def build(self, input_shape: Any) -> None:
        """Create the kernel of shape `(width, units)`, if it is not shared."""
        if self.units is not None:
            self.kernel = self.add_weight(
                (input_shape[-1], self.units), self.kernel_initializer, name="kernel"
            )
        elif not self.embedding.built:
            self.embedding.build()

    @property
    def table(self) -> VocabularyTable:
        """Weights of the layer, as a tensor or a `ComputedVariable` with codes."""
        if self.embedding is None:
            own, by_columns = self.kernel, True
        elif getattr(self.embedding, "tie_weights", True):
            own, by_columns = self.embedding.embeddings, False
        else:
            own, by_columns = self.embedding.reverse_embeddings, True
        owner = self if self.embedding is None else self.embedding
        is_trained = bool(owner.trainable_variables)
        cap, axis = self.logit_soft_cap, 1 if by_columns else 0
        table = VocabularyTable(own, by_columns, self.compute_dtype, is_trained, cap)
        if isinstance(own, ComputedVariable) and own.has_parts(axis):
            return replace(table, trained=False)  # codes have no gradient
        return table.whole()

    def call(self, inputs: Tensors, training: Any = None) -> Any:
        """Return the states in training, their logits or top-k words in inference."""
        if training and self.top_k is not None:
            raise ConfigError(
                "A head with `top_k` cannot be trained. Received: "
                f"top_k={self.top_k}. Next: train a head without `top_k`, then copy "
                "its weights to this model."
            )
        if training:
            # A new tensor whose id identifies this head.
            outputs = inputs * 1
            _remember(outputs, self, None)
            return outputs
        width, around = inputs.shape[-1], ops.shape(inputs)[:-1]
        rows = ops.reshape(inputs, (-1, width))
        table = self.table
        if self.top_k is not None:
            words_and_logits = best_words(rows, table, self.top_k)
            return tuple(
                ops.reshape(x, (*around, self.top_k)) for x in words_and_logits
            )
        if rows.shape[0] is None or rows.shape[0] > width:
            table = table.whole()  # smaller than the logits of its parts
        outputs = ops.reshape(table.logits(rows), (*around, table.words))
        _remember(outputs, self, inputs)
        return outputs

    def compute_output_spec(self, inputs: Tensors, training: Any = None) -> Any:
        """Return the spec of the inference output."""
        del training
        before, dtype = inputs.shape[:-1], "float32"
        if self.top_k is not None:
            shape = (*before, self.top_k)
            return keras.KerasTensor(shape, dtype), keras.KerasTensor(shape, "int32")
        words = self.units or self.embedding.input_dim
        return keras.KerasTensor((*before, words), dtype)

    def get_config(self) -> dict[str, Any]:
        """Return the arguments of the constructor, including a shared embedding."""
        own = self.units
        if self.embedding is not None:
            own = keras.saving.serialize_keras_object(self._told_by)
        return {
            **super().get_config(),
            "embedding_or_units": own,
            "top_k": self.top_k,
            "logit_soft_cap": self.logit_soft_cap,
            "kernel_initializer": keras.initializers.serialize(self.kernel_initializer),
        }

    def tied_to(self) -> list[Any]:
        """Return the shared backbone or embedding, followed by the embedding."""
        return [] if self.embedding is None else [self._told_by, self.embedding]

    def made_of(self, layer: Layer) -> "ChunkedVocabulary":
        """Return a head with the same arguments for another backbone or embedding."""
        config = {**self.get_config(), "embedding_or_units": layer}
        return type(self).from_config(config)

    @classmethod
    def from_config(cls, config: dict[str, Any]) -> "ChunkedVocabulary":
        """Create the layer from its config."""
        own = config["embedding_or_units"]
        if isinstance(own, dict):
            own = keras.saving.deserialize_keras_object(own)
        return cls(**{**config, "embedding_or_units": own})


def head_and_states(outputs: Tensors) -> tuple[ChunkedVocabulary | None, Any]:
    """Return the head that produced the outputs, or None, and the states."""
    entry = _HEADS.get(id(outputs))
    head = entry and entry[0]()
    if entry is None or head is None:
        return None, ops.convert_to_tensor(outputs)
    return head, outputs if entry[1] is None else entry[1]


def _remember(outputs: Tensors, head: ChunkedVocabulary, states: Tensor) -> None:
    key = id(outputs)
    _HEADS[key] = weakref.ref(head), states
    weakref.finalize(outputs, _HEADS.pop, key, None)


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
