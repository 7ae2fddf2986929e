"""Sums over a vocabulary, some rows at a time: loss with slopes, the best words.

The logits of a row are made, used and forgotten. What the loss needs to be trained, its
slopes by states and table, comes of the same logits, so that nothing is made twice.
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
    """What states are multiplied with.

    Args:
        weights: (words, width), or (width, words) if `by_columns`; of codes the
            `ComputedVariable`, whose floats are made for some words at a time.
        by_columns: whether a word is a column.
        dtype: that the products are computed in.
        trained: whether slopes by the weights are wanted.
        soft_cap: limit of the logits, `soft_cap * tanh(logits / soft_cap)`, or None.
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
        """Whether floats are made of codes, for every product anew."""
        return isinstance(self.weights, ComputedVariable)

    def whole(self) -> "VocabularyTable":
        """Return the table with a tensor for its weights."""
        own = ops.cast(ops.convert_to_tensor(self.weights), self.dtype)
        return replace(self, weights=own)

    def parts(self) -> list[tuple[int, int]]:
        """Return where parts of the words begin and end.

        What is added to the slopes by a part takes as much memory as the part.
        """
        size = -(-self.words // PARTS)
        starts = range(0, self.words, size)
        return [(start, min(start + size, self.words)) for start in starts]

    def cut(self, start: int, stop: int, after: Any = None) -> Any:
        """Return the weights of some words; of codes made when `after` is there."""
        if self.in_parts:
            axis = 1 if self.by_columns else 0
            own = self.weights.part(axis, start, stop, after)
            return ops.cast(own, self.dtype)
        if self.by_columns:
            return self.weights[:, start:stop]
        return self.weights[start:stop]

    def joined(self, parts: Sequence[Any]) -> Any:
        """Return what was cut into parts."""
        return ops.concatenate(parts, axis=1 if self.by_columns else 0)

    def logits(self, states: Any) -> Any:
        """Return logits, float32 (rows, words), of states (rows, width)."""
        return self.capped(states)[0]

    def capped(self, states: Any) -> tuple[Any, Any]:
        """Return logits and their slope by what was not capped yet, or None."""
        logits = ops.cast(self._products(states), "float32")
        if self.soft_cap is None:
            return logits, None
        part = ops.tanh(logits / self.soft_cap)
        return part * self.soft_cap, 1 - ops.square(part)

    def slopes(
        self, states: Any, by_logits: Any, by_parts: Sequence[Any]
    ) -> tuple[Any, list[Any]]:
        """Return slopes by states, and by parts of the weights with earlier ones.

        Args:
            states: (rows, width).
            by_logits: slopes by their logits.
            by_parts: sums so far, one for each of `parts`; none if not trained.
        """
        by_logits = ops.cast(by_logits, self.dtype)
        by_states = self._by_states(by_logits)
        last = by_states
        sums = []
        for (start, stop), before in zip(self.parts(), by_parts, strict=False):
            part = _after(by_logits, last, start, stop)
            # Not `matmul` of a transposed tensor, which may become a copy.
            last = before + ops.einsum(f"rd,rw->{self._axes}", states, part)
            sums.append(last)
        return by_states, sums

    def _products(self, states: Any) -> Any:
        if not self.in_parts:
            return ops.einsum(f"rd,{self._axes}->rw", states, self.weights)
        products: list[Any] = []
        for part in self.parts():
            own = self.cut(*part, products[-1] if products else states)
            products.append(ops.einsum(f"rd,{self._axes}->rw", states, own))
            del own  # before the next are made
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
            change = ops.cast(change, "float32")  # sums of 16 bits are rounded again
            total = change if total is None else total + change
        return ops.cast(total, self.dtype)

    @property
    def _axes(self) -> str:
        return "dw" if self.by_columns else "wd"


def crossentropy(
    states: Any,
    table: VocabularyTable,
    labels: Tensor,
    weights: Any,
    counts: Any,
    smoothing: float,
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
        # Or TensorFlow would begin with ten chunks at once.
        last = [by_states, *by_parts][-1]
        own = current().after(apart, last, lambda x: _part(x, start, size))
        weight, count = (_part(x, start, size) * fresh for x in (weights, counts))
        label = _part(labels, start, size)
        logits, bend = constant_table.capped(own)
        # What does not count may have any label.
        valid = ops.where(ops.equal(weight, 0), 0, label)
        loss, slope, best = current().crossentropy(logits, valid)
        if smoothing:
            # No mask of a chunk's size is made before its turn.
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
        # Zero, with the slope that is known.
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


def best_words(states: Any, table: VocabularyTable, count: int) -> tuple[Any, Any]:
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


def _chunks(states: Any) -> tuple[Any, Callable[[Any], tuple[Any, Any]]]:
    """Return rows of a chunk; and what gives its first row and which are new in it.

    The last chunk is as long as the others and begins earlier.
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


def _loop(states: Any, size: Any, step: Any, begin: Any) -> Any:
    rows = ops.shape(states)[0]
    return ops.fori_loop(0, -(-rows // size), step, begin)
