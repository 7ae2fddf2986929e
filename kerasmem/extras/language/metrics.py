"""Perplexity, KL divergence and top-1 agreement of language models.

Perplexity is the exponential of the mean cross-entropy of the next token. Only the
logits of one batch are in memory.
"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

import keras
import numpy as np

from kerasmem.backends import current
from kerasmem.compression.measure import (
    FIGURES,
    LATENCY,
    METRICS,
    WEIGHTS,
    figures,
    latencies,
)
from kerasmem.compression.quantize.variable import StandIn
from kerasmem.errors import DataError
from kerasmem.extras.chunked.vocabulary import ChunkedVocabulary
from kerasmem.files.data import outputs_on, sample_inputs
from kerasmem.files.data.forms import labeled_batches
from kerasmem.graph.divergence import kl_divergence, log_probabilities
from kerasmem.graph.layers import sublayers
from kerasmem.graph.values import nbytes, to_numpy
from kerasmem.records import ModelFigures
from kerasmem.types import Dataset, Model, Tensor, Tensors

_LOGIT_BYTES = 1 << 28
"""Maximum size of the logits of a batch."""

_NEAR = 1e-3
"""Relative tolerance for rounding in the causality check."""


def language_figures(
    models: dict[str, Any],
    data: Dataset,
    batch_size: int = 32,
    measured: Sequence[str] = FIGURES,
) -> dict[str, ModelFigures]:
    """Return the figures of language models on the same rows.

    The first model is the reference.

    The metrics are `perplexity` and, for all but the first model, `kl_divergence` and
    `top1_agreement`. `kl_divergence` is the mean of KL(first || other) over tokens in
    nats. `top1_agreement` is the fraction of tokens with the same most likely next
    token.

    Args:
        models: Built models by name. Their files are not measured.
        data: Rows of token ids and their next ids. See `files.data.tokens`.
        batch_size: Maximum rows per batch. Reduced if the logits exceed 256 MiB.
            Defaults to 32.
        measured: Names of the figures to measure. Defaults to all.

    Raises:
        DataError: If a model does not return logits for each token, is not causal, or
            has another number of tokens.
    """
    by_name, rows = {}, batch_size
    for model in models.values():
        rows = min(rows, _rows_within(model, data, batch_size))
    count = sum(to_numpy(w).sum(dtype="f8") for *_, w in labeled_batches(data, rows))
    times = [{} for _ in models]
    if LATENCY in measured:
        times = latencies(list(models.values()), data, rows)
    first = next(iter(models.values()))
    length = keras.tree.flatten(sample_inputs(data, 1))[0].shape[1]
    for (name, model), latency in zip(models.items(), times, strict=True):
        own = replace(figures(model, None, rows, None, measured), **latency)
        metrics = {}
        if METRICS in measured:
            metrics = language_metrics(model, data, rows, model is not first and first)
        tokens = own.latency_batch_size and length * own.latency_batch_size
        by_name[name] = replace(
            own,
            metrics=metrics,
            tokens_per_second=tokens
            and own.latency_ms
            and 1e3 * tokens / own.latency_ms,
            tokens=int(count),
            token_bytes=token_bytes(model) if WEIGHTS in measured else None,
        )
    return by_name


def language_metrics(
    model: Model, data: Dataset, batch_size: int, reference: Model = None
) -> dict[str, float]:
    """Return the perplexity of a model, and its distance from a reference.

    The models return logits or probabilities `(batch, length, tokens)`.
    """
    sums, total = np.zeros(3), 0.0
    with current().inference():
        for own, other, y, weight in _batches(model, reference, data, batch_size):
            values = _of_tokens(own, other, y)
            sums += [(to_numpy(x).astype(np.float64) * weight).sum() for x in values]
            total += weight.sum(dtype=np.float64)
    loss, divergence, agreement = (sums / total).tolist()
    metrics = {"perplexity": math.exp(min(loss, 700.0))}
    if reference:
        metrics |= {"kl_divergence": divergence, "top1_agreement": agreement}
    return metrics


def _batches(
    model: Model, reference: Model, data: Dataset, batch_size: int
) -> Iterator[tuple[Any, Any, Any, np.ndarray]]:
    for x, y, weight in labeled_batches(data, batch_size):
        own = log_probabilities(outputs_on(model, x))
        other = log_probabilities(outputs_on(reference, x)) if reference else own
        if own.shape[-1] != other.shape[-1]:
            raise DataError(
                "Expected models with the same number of tokens. "
                f"Received: {other.shape[-1]} in {reference.name!r}, "
                f"{own.shape[-1]} in {model.name!r}."
            )
        ids = keras.ops.convert_to_tensor(to_numpy(y), "int32")
        yield own, other, ids, to_numpy(weight)


def _of_tokens(own: Any, other: Any, ids: Any) -> tuple[Any, Any, Any]:
    ops = keras.ops
    loss = -ops.take_along_axis(own, ids[..., None], axis=-1)[..., 0]
    agreement = ops.equal(ops.argmax(own, axis=-1), ops.argmax(other, axis=-1))
    return loss, kl_divergence(other, own), ops.cast(agreement, "float32")


def _rows_within(model: Model, data: Dataset, batch_size: int) -> int:
    """Return the number of rows per batch."""
    x = sample_inputs(data, 1)
    flat = keras.tree.flatten(x)
    length = flat[0].shape[1]
    outputs = outputs_on(model, x)
    if (
        not keras.ops.is_tensor(outputs)
        or len(outputs.shape) != 3
        or outputs.shape[1] != length
    ):
        shapes = [tuple(y.shape) for y in keras.tree.flatten(outputs)]
        raise DataError(
            f"The model {model.name!r} is not a language model. Expected: logits or "
            f"probabilities of the next token, (batch, {length}, tokens). Received: "
            f"outputs of shape {', '.join(map(str, shapes))}."
        )
    _check_is_causal(model, x, outputs)
    return max(1, min(batch_size, _LOGIT_BYTES // (4 * length * outputs.shape[-1])))


def _check_is_causal(model: Model, x: Tensor, outputs: Tensors) -> None:
    def changed(array: np.ndarray) -> np.ndarray:
        if array.dtype.kind == "b":  # the mask
            return array
        others = array.copy()
        others[:, -1] = np.where(array[:, -1] == 0, 1, 0)
        return others

    def whole(array: np.ndarray) -> np.ndarray:
        return np.ones_like(array) if array.dtype.kind == "b" else array

    leaves = keras.tree.flatten(x)
    if not all(leaf.all() for leaf in leaves if leaf.dtype.kind == "b"):
        x = keras.tree.map_structure(whole, x)  # the outputs of padding may differ
        outputs = outputs_on(model, x)
    again = outputs_on(model, keras.tree.map_structure(changed, x))
    before, after = (
        to_numpy(keras.ops.cast(y, "float32"))[:, :-1] for y in (outputs, again)
    )
    if not np.isfinite(before).all():
        raise DataError(f"The model {model.name!r} returns NaN or infinity for tokens.")
    if not np.allclose(before, after, rtol=_NEAR, atol=_NEAR * np.abs(before).max()):
        raise DataError(
            f"The model {model.name!r} is not causal: its outputs for earlier tokens "
            "change with the last token. Perplexity is only defined for causal "
            "language models."
        )


def token_bytes(model: Model) -> int:
    """Return the bytes of weights that are read for one token.

    All weights count, but only one row of an embedding that is not an output layer.
    """
    total = sum(map(nbytes, model.weights))
    layers = sublayers(model)
    heads = [
        layer.embedding if isinstance(layer, ChunkedVocabulary) else layer
        for layer in layers
        if isinstance(layer, ChunkedVocabulary)
        or (isinstance(layer, keras.layers.ReversibleEmbedding) and layer.tie_weights)
    ]
    for layer in layers:
        is_table = isinstance(layer, keras.layers.Embedding)
        if is_table and not any(layer is head for head in heads):
            table = vars(layer)["_embeddings"]
            parts = table.parts if isinstance(table, StandIn) else [table]
            size = sum(map(nbytes, parts))
            total -= size - size // layer.input_dim
    return total
