"""Sums over a vocabulary, some rows at a time: loss with slopes, the best words.

The logits of a row are made, used and forgotten. What the loss needs to be trained, its
slopes by states and table, comes of the same logits, so that nothing is made twice.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from keras import ops

from kerasmem.backends import current

_CHUNKS, _LEAST_ROWS, _PARTS = 40, 128, 8


@dataclass(frozen=True)
class Table:
    """What states are multiplied with.

    Args:
        weights: (words, width), or (width, words) if `by_columns`.
        by_columns: whether a word is a column.
        trained: whether slopes by the weights are wanted.
        soft_cap: limit of the logits, `soft_cap * tanh(logits / soft_cap)`, or None.
    """

    weights: Any
    by_columns: bool
    trained: bool = True
    soft_cap: float | None = None

    @property
    def words(self) -> int:
        """Number of words."""
        return self.weights.shape[1 if self.by_columns else 0]

    def logits(self, states: Any) -> Any:
        """Return logits, float32 (rows, words), of states (rows, width)."""
        return self.capped(states)[0]

    def parts(self) -> list[tuple[int, int]]:
        """Return where parts of the words begin and end, none where none is trained.

        What is added to the slopes by a part takes as much memory as the part.
        """
        if not self.trained:
            return []
        size = -(-self.words // _PARTS)
        starts = range(0, self.words, size)
        return [(start, min(start + size, self.words)) for start in starts]

    def cut(self, start: int, stop: int) -> Any:
        """Return the weights of some words."""
        if self.by_columns:
            return self.weights[:, start:stop]
        return self.weights[start:stop]

    def joined(self, parts: Sequence[Any]) -> Any:
        """Return what was cut into parts."""
        return ops.concatenate(parts, axis=1 if self.by_columns else 0)

    def slopes(self, states: Any, by_logits: Any) -> tuple[Any, list[Any]]:
        """Return slopes by states and by parts of the weights, of those by logits."""
        by_logits = ops.cast(by_logits, self.weights.dtype)
        own = ops.transpose(self.weights) if self.by_columns else self.weights
        parts = [by_logits[:, start:stop] for start, stop in self.parts()]
        return ops.matmul(by_logits, own), [
            ops.matmul(ops.transpose(states), part)
            if self.by_columns
            else ops.matmul(ops.transpose(part), states)
            for part in parts
        ]

    def capped(self, states: Any) -> tuple[Any, Any]:
        """Return logits and their slope by what was not capped yet, or None."""
        own = self.weights if self.by_columns else ops.transpose(self.weights)
        logits = ops.cast(ops.matmul(states, own), "float32")
        if self.soft_cap is None:
            return logits, None
        part = ops.tanh(logits / self.soft_cap)
        return part * self.soft_cap, 1 - ops.square(part)


def crossentropy(
    states: Any, table: Table, labels: Any, weights: Any, counts: Any, smoothing: float
) -> tuple[Any, Any]:
    """Return the weighted sum of cross-entropies of rows, with its slopes; the hits.

    Hits are the sum of the counts of the rows whose label is the best word.

    Args:
        states: (rows, width).
        table: of the words.
        labels: (rows,), integers from 0 to `words - 1`.
        weights: of the cross-entropies, (rows,), float32.
        counts: of the hits, likewise.
        smoothing: share of the label that goes to all words alike.
    """
    size, starts = _chunks(states)
    words = table.words
    every = ops.arange(words, dtype="int32")[None]
    fixed = replace(table, weights=ops.stop_gradient(table.weights))
    apart = ops.stop_gradient(states)

    def step(index: Any, sums: tuple[Any, ...]) -> tuple[Any, ...]:
        total, hits, by_states, *by_parts = sums
        start, fresh = starts(index)
        # Or TensorFlow would begin with ten chunks at once.
        last = [by_states, *by_parts][-1]
        own = current().after(apart, last, lambda x: _part(x, start, size))
        weight, count = (_part(x, start, size) * fresh for x in (weights, counts))
        label = _part(labels, start, size)
        is_label = ops.equal(every, label[:, None])
        logits, bend = fixed.capped(own)
        level = ops.logsumexp(logits, axis=-1, keepdims=True)
        at_label = ops.sum(ops.where(is_label, logits, 0.0), axis=-1)
        loss = level[:, 0] - (1 - smoothing) * at_label
        slope = ops.exp(logits - level)
        if smoothing:
            loss -= smoothing * ops.mean(logits, axis=-1)
            slope -= smoothing / words
        slope = ops.where(is_label, slope - (1 - smoothing), slope) * weight[:, None]
        rows, parts = fixed.slopes(own, slope if bend is None else slope * bend)
        before = _part(by_states, start, size)
        is_hit = ops.equal(ops.cast(ops.argmax(logits, axis=-1), "int32"), label)
        return (
            total + ops.sum(loss * weight),
            hits + ops.sum(ops.where(is_hit, count, 0.0)),
            ops.slice_update(by_states, (start, 0), before + rows),
            *map(ops.add, by_parts, parts),
        )

    with current().inference():
        nothing = ops.zeros((), "float32")
        zeros = [ops.zeros_like(fixed.cut(*part)) for part in fixed.parts()]
        begin = (nothing, nothing, ops.zeros_like(apart), *zeros)
        total, hits, by_states, *by_parts = _loop(states, size, step, begin)
    slopes = [(states, by_states)]
    if by_parts:
        slopes.append((table.weights, fixed.joined(by_parts)))
    total = ops.stop_gradient(total)
    for value, slope in slopes:
        flat = (ops.reshape(x, (-1,)) for x in (value, ops.stop_gradient(slope)))
        linear = ops.vdot(*(ops.cast(x, "float32") for x in flat))
        # Zero, with the slope that is known.
        total = total + (linear - ops.stop_gradient(linear))
    return total, ops.stop_gradient(hits)


def best_words(states: Any, table: Table, count: int) -> tuple[Any, Any]:
    """Return the largest logits of each row and their words, (rows, count) each."""
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


def rows_of_chunk(rows: int) -> int:
    """Return how many of some rows have logits at a time."""
    return min(max(-(-rows // _CHUNKS), _LEAST_ROWS), rows)


def _chunks(states: Any) -> tuple[Any, Callable[[Any], tuple[Any, Any]]]:
    """Return rows of a chunk; and what gives its first row and which are new in it.

    The last chunk is as long as the others and begins earlier.
    """
    rows = ops.shape(states)[0]
    if isinstance(rows, int):
        size = rows_of_chunk(rows)
    else:
        wanted = ops.maximum(-(-rows // _CHUNKS), _LEAST_ROWS)
        size = ops.minimum(wanted, rows)

    def starts(index: Any) -> tuple[Any, Any]:
        first = index * size
        start = ops.minimum(first, rows - size)
        return start, ops.cast(start + ops.arange(size) >= first, "float32")

    return size, starts


def _part(x: Any, start: Any, size: Any) -> Any:
    rest = x.shape[1:]
    return ops.slice(x, (start, *(0 for _ in rest)), (size, *rest))


def _loop(states: Any, size: Any, step: Any, begin: Any) -> Any:
    rows = ops.shape(states)[0]
    return ops.fori_loop(0, -(-rows // size), step, begin)
