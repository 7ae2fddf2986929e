"""The head of a language model: states in training, logits where they are asked for."""

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
"""What heads gave, by id: the head, and the states if it is not these."""


@keras.saving.register_keras_serializable("kerasmem")
class ChunkedVocabulary(keras.layers.Layer, Tied):
    """Products of states with a large vocabulary, never whole while training.

    In training it hands its states on, and `ChunkedCrossentropy` makes the logits of
    some rows at a time, for the loss and its gradients at once. In inference it gives
    logits, of shape `(..., words)`, or the best words. An `evaluate` of that loss alone
    does not make them either, where it is compiled. The loss tells the metric
    `accuracy` too.

    Source: Wijmans, Huval, Hertzberg, Koltun and Krähenbühl, "Cut Your Losses in
    Large-Vocabulary Language Models", 2024.

    Args:
        embedding_or_units: an `Embedding` whose table is the head's too, or a
            `ReversibleEmbedding`; a backbone of KerasHub that the model calls, for its
            `token_embedding`; or the number of words, for a kernel of its own.
        top_k: None for logits in inference; or a number, for the largest logits and
            their words, each of shape `(..., top_k)`. The model cannot be trained or
            evaluated then.
        logit_soft_cap: limit of the logits, which bend towards it; None for that of the
            embedding, if it has one.
        kernel_initializer: of the own kernel.
        **kwargs: `name`, `dtype` and the like.

    Raises:
        ConfigError: if it is neither a number nor an embedding, `top_k` is out of its
            range, or a head with `top_k` is called in training.

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
        # Not tracked: it is a layer of the model, and not one of this layer.
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
        """Make the own kernel, `(width, units)`, if there is one."""
        if self.units is not None:
            self.kernel = self.add_weight(
                (input_shape[-1], self.units), self.kernel_initializer, name="kernel"
            )
        elif not self.embedding.built:
            self.embedding.build()

    @property
    def table(self) -> VocabularyTable:
        """What states are multiplied with: tensors, or the variable of codes."""
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
            return replace(table, trained=False)  # codes are not
        return table.whole()

    def call(self, inputs: Tensors, training: Any = None) -> Any:
        """Return states of shape `(..., width)` as they are, or their logits."""
        if training and self.top_k is not None:
            raise ConfigError(
                "A head that gives the best words is not trained. Received: "
                f"top_k={self.top_k}. Next: train one without `top_k`, and give its "
                "weights to this model."
            )
        if training:
            # A tensor of its own, so that it is known again.
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
            table = table.whole()  # parts of so many logits are more than it
        outputs = ops.reshape(table.logits(rows), (*around, table.words))
        _remember(outputs, self, inputs)
        return outputs

    def compute_output_spec(self, inputs: Tensors, training: Any = None) -> Any:
        """Return what inference gives."""
        del training
        before, dtype = inputs.shape[:-1], "float32"
        if self.top_k is not None:
            shape = (*before, self.top_k)
            return keras.KerasTensor(shape, dtype), keras.KerasTensor(shape, "int32")
        words = self.units or self.embedding.input_dim
        return keras.KerasTensor((*before, words), dtype)

    def get_config(self) -> dict[str, Any]:
        """Return the arguments; an embedding is known again as that of the model."""
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
        """Return the backbone or the embedding, and last the embedding itself."""
        return [] if self.embedding is None else [self._told_by, self.embedding]

    def made_of(self, layer: Layer) -> "ChunkedVocabulary":
        """Return a head with the same arguments, of another backbone or embedding."""
        config = {**self.get_config(), "embedding_or_units": layer}
        return type(self).from_config(config)

    @classmethod
    def from_config(cls, config: dict[str, Any]) -> "ChunkedVocabulary":
        """Return the layer of a config."""
        own = config["embedding_or_units"]
        if isinstance(own, dict):
            own = keras.saving.deserialize_keras_object(own)
        return cls(**{**config, "embedding_or_units": own})


def head_and_states(outputs: Tensors) -> tuple[ChunkedVocabulary | None, Any]:
    """Return which head gave something, None if none did, and of which states."""
    entry = _HEADS.get(id(outputs))
    head = entry and entry[0]()
    if entry is None or head is None:
        return None, ops.convert_to_tensor(outputs)
    return head, outputs if entry[1] is None else entry[1]


def _remember(outputs: Tensors, head: ChunkedVocabulary, states: Any) -> None:
    key = id(outputs)
    _HEADS[key] = weakref.ref(head), states
    weakref.finalize(outputs, _HEADS.pop, key, None)
