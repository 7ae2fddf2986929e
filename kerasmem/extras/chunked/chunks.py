"""Cross-entropy and top-k over a large vocabulary, a few rows at a time.

Logits exist only for the current rows. The gradients by states and table are computed
together with the loss, so no logits are computed twice.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from keras import ops

from kerasmem.backends import current
from kerasmem.graph.computed import (
    CHUNKS,
    LEAST_ROWS,
    PARTS,
    ComputedVariable,
    rows_of_chunk,
)
from kerasmem.types import Tensor


@dataclass(frozen=True)
class VocabularyTable:
    """Weights of the output layer.

    Args:
        weights: Tensor of shape `(words, width)`, or `(width, words)` if `by_columns`.
            Quantized weights are a `ComputedVariable`, dequantized in parts.
        by_columns: Whether each word is a column.
        dtype: Dtype of the matrix products.
        trained: Whether to compute gradients by the weights.
        soft_cap: Limit of the logits, `soft_cap * tanh(logits / soft_cap)`, or None.
    """

    weights: Any
    by_columns: bool
    dtype: str
    trained: bool = True
    soft_cap: float | None = None

    @property
    def words(self) -> int:
        """Number of words."""
        return self.weights.shape[1 if self.by_columns else 0]

    @property
    def in_parts(self) -> bool:
        """Whether the weights are dequantized in parts for each product."""
        return isinstance(self.weights, ComputedVariable)

    def whole(self) -> "VocabularyTable":
        """Return the table with its weights as one tensor."""
        own = ops.cast(ops.convert_to_tensor(self.weights), self.dtype)
        return replace(self, weights=own)

    def parts(self) -> list[tuple[int, int]]:
        """Return the start and end of each part of the vocabulary.

        The gradient update of a part needs as much memory as the part.
        """
        size = -(-self.words // PARTS)
        starts = range(0, self.words, size)
        return [(start, min(start + size, self.words)) for start in starts]

    def cut(self, start: int, stop: int, after: Any = None) -> Any:
        """Return the weights of some words.

        Quantized weights are dequantized once `after` is computed.
        """
        if self.in_parts:
            axis = 1 if self.by_columns else 0
            own = self.weights.part(axis, start, stop, after)
            return ops.cast(own, self.dtype)
        if self.by_columns:
            return self.weights[:, start:stop]
        return self.weights[start:stop]

    def joined(self, parts: Sequence[Any]) -> Any:
        """Concatenate parts along the vocabulary axis."""
        return ops.concatenate(parts, axis=1 if self.by_columns else 0)

    def logits(self, states: Tensor) -> Any:
        """Return float32 logits of shape `(rows, words)` for states `(rows, width)`."""
        return self.capped(states)[0]

    def capped(self, states: Tensor) -> tuple[Any, Any]:
        """Return the logits and their gradient by the uncapped logits, or None."""
        logits = ops.cast(self._products(states), "float32")
        if self.soft_cap is None:
            return logits, None
        part = ops.tanh(logits / self.soft_cap)
        return part * self.soft_cap, 1 - ops.square(part)

    def slopes(
        self, states: Tensor, by_logits: Any, by_parts: Sequence[Any]
    ) -> tuple[Any, list[Any]]:
        """Return the gradients by states and by parts of the weights."""
        by_logits = ops.cast(by_logits, self.dtype)
        by_states = self._by_states(by_logits)
        last = by_states
        sums = []
        for (start, stop), before in zip(self.parts(), by_parts, strict=False):
            part = _after(by_logits, last, start, stop)
            # A `matmul` with a transposed tensor may copy the tensor.
            last = before + ops.einsum(f"rd,rw->{self._axes}", states, part)
            sums.append(last)
        return by_states, sums

    def _products(self, states: Tensor) -> Any:
        if not self.in_parts:
            return ops.einsum(f"rd,{self._axes}->rw", states, self.weights)
        products: list[Any] = []
        for part in self.parts():
            own = self.cut(*part, products[-1] if products else states)
            products.append(ops.einsum(f"rd,{self._axes}->rw", states, own))
            del own  # free this part before the next one
        return ops.concatenate(products, axis=-1)

    def _by_states(self, by_logits: Any) -> Any:
        if not self.in_parts:
            return ops.einsum(f"rw,{self._axes}->rd", by_logits, self.weights)
        total = None
        for start, stop in self.parts():
            own = self.cut(start, stop, by_logits if total is None else total)
            part = by_logits[:, start:stop]
            change = ops.einsum(f"rw,{self._axes}->rd", part, own)
            del own
            change = ops.cast(change, "float32")  # 16-bit sums would lose precision
            total = change if total is None else total + change
        return ops.cast(total, self.dtype)

    @property
    def _axes(self) -> str:
        return "dw" if self.by_columns else "wd"


def crossentropy(
    states: Tensor,
    table: VocabularyTable,
    labels: Tensor,
    weights: Tensor,
    counts: Any,
    smoothing: float,
) -> tuple[Any, Any]:
    """Return the weighted cross-entropy sum, with gradients, and the accuracy sum.

    The accuracy sum adds the counts of all rows whose label has the largest logit.

    Args:
        states: Tensor of shape `(rows, width)`.
        table: Weights of the output layer.
        labels: Int tensor of shape `(rows,)`, in [0, words).
        weights: Float32 tensor of shape `(rows,)`. Loss weights.
        counts: Float32 tensor of shape `(rows,)`. Accuracy weights.
        smoothing: Label smoothing: fraction of each label spread over all words.
    """
    if states.shape[0] == 0:  # a replica without samples
        nothing = ops.cast(ops.sum(states), "float32")
        return nothing, ops.stop_gradient(nothing)
    size, starts = _chunks(states)
    words = table.words
    constant_table = table
    if not table.in_parts:
        constant_table = replace(table, weights=ops.stop_gradient(table.weights))
    apart = ops.stop_gradient(states)

    def step(index: Any, sums: tuple[Any, ...]) -> tuple[Any, ...]:
        total, hits, by_states, *by_parts = sums
        start, fresh = starts(index)
        # Without this dependency, TensorFlow would start ten chunks at once.
        last = [by_states, *by_parts][-1]
        own = current().after(apart, last, lambda x: _part(x, start, size))
        weight, count = (_part(x, start, size) * fresh for x in (weights, counts))
        label = _part(labels, start, size)
        logits, bend = constant_table.capped(own)
        # Labels with zero weight may be out of range.
        valid = ops.where(ops.equal(weight, 0), 0, label)
        loss, slope, best = current().crossentropy(logits, valid)
        if smoothing:
            # Delays the one-hot mask of a chunk until its loss is computed.
            valid = current().after(valid, loss, lambda x: x)
            at_label = ops.take_along_axis(logits, valid[:, None], axis=-1)[:, 0]
            loss += smoothing * (at_label - ops.mean(logits, axis=-1))
            is_label = ops.one_hot(valid, words, dtype="float32")
            slope += smoothing * (is_label - 1 / words)
        slope = slope * weight[:, None]
        slope = slope if bend is None else slope * bend
        rows, by_parts = constant_table.slopes(own, slope, by_parts)
        before = _part(by_states, start, size)
        is_hit = ops.equal(best, label)
        return (
            total + ops.sum(loss * weight),
            hits + ops.sum(ops.where(is_hit, count, 0.0)),
            ops.slice_update(by_states, (start, 0), before + rows),
            *by_parts,
        )

    with current().inference():
        nothing = ops.zeros((), "float32")
        parts = constant_table.parts() if table.trained else []
        zeros = [ops.zeros_like(constant_table.cut(*part)) for part in parts]
        begin = (nothing, nothing, ops.zeros_like(apart), *zeros)
        total, hits, by_states, *by_parts = _loop(states, size, step, begin)
    slopes = [(states, by_states)]
    if by_parts:
        slopes.append((table.weights, constant_table.joined(by_parts)))
    total = ops.stop_gradient(total)
    for value, slope in slopes:
        # Adds zero, but with the known gradient.
        total += current().linear(
            lambda *_: ops.zeros((), "float32"),
            lambda upstream, slope: ops.cast(
                ops.cast(slope, "float32") * upstream, slope.dtype
            ),
            value,
            [ops.stop_gradient(slope)],
        )
    return total, ops.stop_gradient(hits)


def _after(x: Tensor, last: Any, start: int, stop: int) -> Any:
    return current().after(x, last, lambda held: held[:, start:stop])


def best_words(states: Tensor, table: VocabularyTable, count: int) -> tuple[Any, Any]:
    """Return the largest logits of each row and their words, both `(rows, count)`."""
    size, starts = _chunks(states)

    def step(index: Any, best: tuple[Any, Any]) -> tuple[Any, Any]:
        start, _ = starts(index)
        values, words = ops.top_k(table.logits(_part(states, start, size)), count)
        return (
            ops.slice_update(best[0], (start, 0), values),
            ops.slice_update(best[1], (start, 0), ops.cast(words, "int32")),
        )

    rows = ops.shape(states)[0]
    begin = (ops.zeros((rows, count), "float32"), ops.zeros((rows, count), "int32"))
    with current().inference():
        return _loop(states, size, step, begin)


def _chunks(states: Tensor) -> tuple[Any, Callable[[Any], tuple[Any, Any]]]:
    """Return the rows per chunk, and a function for its start and its new rows.

    All chunks have the same length, so the last one may overlap the previous one.
    """
    rows = ops.shape(states)[0]
    if isinstance(rows, int):
        size = rows_of_chunk(rows)
    else:
        rows_by_count = ops.maximum(-(-rows // CHUNKS), LEAST_ROWS)
        size = ops.maximum(ops.minimum(rows_by_count, rows), 1)

    def starts(index: Any) -> tuple[Any, Any]:
        first = index * size
        start = ops.minimum(first, rows - size)
        return start, ops.cast(start + ops.arange(size) >= first, "float32")

    return size, starts


def _part(x: Tensor, start: Any, size: Any) -> Any:
    rest = x.shape[1:]
    return ops.slice(x, (start, *(0 for _ in rest)), (size, *rest))


def _loop(states: Tensor, size: Any, step: Any, begin: Any) -> Any:
    rows = ops.shape(states)[0]
    return ops.fori_loop(0, -(-rows // size), step, begin)
