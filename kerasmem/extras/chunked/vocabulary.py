"""Output layer of a language model: states in training, logits in inference."""

import weakref
from dataclasses import replace
from typing import Any

import keras
from keras import ops

from kerasmem.checks import Whole
from kerasmem.errors import ConfigError
from kerasmem.extras.chunked.chunks import VocabularyTable, best_words
from kerasmem.graph.channels.tied import Tied
from kerasmem.graph.computed import ComputedVariable
from kerasmem.types import Layer, Tensors

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


def _remember(outputs: Tensors, head: ChunkedVocabulary, states: Any) -> None:
    key = id(outputs)
    _HEADS[key] = weakref.ref(head), states
    weakref.finalize(outputs, _HEADS.pop, key, None)
