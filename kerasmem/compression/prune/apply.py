"""Pruning all at once: the whole model, or by magnitude a few pieces at a time.

Piece by piece the threshold is found digit by digit: how many entries there are by the
first 16 bits of their score, then, of those that begin like it, by the next ones. Which
entries go is what `keep_largest` says of all of them at once, ties too.
"""

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from kerasmem.compression.evidence import sums_over_samples
from kerasmem.compression.prune import CRITERIA, GRADIENT, INPUTS, UNSTRUCTURED, Prune
from kerasmem.compression.prune.plan import Plan, changes, input_norms, make_plan
from kerasmem.compression.prune.scores import (
    magnitude,
    parse_pattern,
    removed_count,
    scores,
)
from kerasmem.compression.technique import Context
from kerasmem.compression.working import LazyChanges, Streams, working_copy
from kerasmem.files.entries import Readable
from kerasmem.graph.values import nbytes, to_numpy
from kerasmem.records import WeightChange
from kerasmem.stages import Progress


def prune_weights(
    model: Any, config: Prune, context: Context
) -> tuple[Any, list[WeightChange]]:
    """Return a model whose weights that matter least are zero, and every weight.

    Raises:
        ModelError: if the model has nothing to prune.
        ConfigError: if a pattern matches no weight, or the criterion takes data.
    """
    model = working_copy(model, context)
    if why_not(config) is None:
        streams = Streams(lambda _: None)
        summarize = prune_in_blocks(model, config, streams)
        streams.assign()
        return model, summarize()
    plan = make_plan(model, config)
    values = [to_numpy(variable) for variable in plan.variables]
    evidence = gather(model, plan, config.criterion, context.data)
    matters = scores(plan.criterion(config), values, evidence, config.seed)
    masks = choose_masks(plan, config, matters, plan.sparsities)
    for variable, mask in zip(plan.variables, masks, strict=True):
        zero_out(variable, mask)
    return model, changes(model, plan, [1 - mask.mean() for mask in masks])


def choose_masks(
    plan: Plan,
    config: Prune,
    matters: Sequence[np.ndarray],
    sparsities: Sequence[float],
) -> list[np.ndarray]:
    """Return one bool mask per weight of a plan, False where it is to become zero.

    Args:
        plan: the weights and their groups.
        config: the pattern.
        matters: how much each entry matters, an array per weight.
        sparsities: the share to remove, per weight; the same within a group.
    """
    pattern = parse_pattern(config.pattern)
    axes = plan.axes
    masks: list[Any] = [None] * len(matters)
    for group in plan.groups:
        found = pattern.masks(
            [matters[index] for index in group],
            sparsities[group[0]],
            [axes[index] for index in group],
        )
        for index, mask in zip(group, found, strict=True):
            masks[index] = mask
    return masks


def zero_out(variable: Any, mask: np.ndarray) -> None:
    """Set a variable to zero where `mask` is False."""
    value = to_numpy(variable)
    variable.assign(np.where(mask, value, np.zeros((), value.dtype)))


def gather(
    model: Any, plan: Plan, criterion: str, data: Any
) -> list[np.ndarray] | None:
    """Return what a criterion has to know of each weight, None if nothing.

    Args:
        model: a built model, compiled for a criterion of gradients.
        plan: the weights.
        criterion: a key of `CRITERIA`.
        data: samples; a criterion of gradients takes labels too.

    Raises:
        ConfigError: if the data is missing.
        ModelError: if the model has no loss.
    """
    if CRITERIA[criterion] == INPUTS:
        return input_norms(model, data, plan.chosen)
    if CRITERIA[criterion] == GRADIENT:
        return sums_over_samples(model, plan.variables, criterion, data)
    return None


_DIGIT = 16
_LARGEST = (1 << _DIGIT) - 1

Cut = tuple[int, int]


def why_not(config: Prune) -> str | None:
    """Return why a choice needs the whole model, None if it does not."""
    if config.criterion not in ("magnitude", "magnitude/rms"):
        return f"the criterion {config.criterion!r} is more than the size of an entry"
    if config.pattern != UNSTRUCTURED:
        return f"the pattern {config.pattern!r} ranks entries that lie apart"
    return None


def prune_in_blocks(model: Any, config: Prune, streams: Streams) -> LazyChanges:
    """Give the weights of a model zeros.

    Args:
        model: the model, which may be described; it stays as it is.
        config: the choice.
        streams: get the zeros.

    Raises:
        ModelError: if the model has nothing to prune.
        ConfigError: if a pattern matches no weight.
    """
    plan = make_plan(model, config)
    is_relative = plan.criterion(config) == "magnitude/rms"
    shares = [0.0] * len(plan.chosen)
    # Read for the root mean square, for each digit of the threshold, and for ties.
    passes = 3 + is_relative
    progress = Progress("prune", passes * sum(map(nbytes, plan.variables)))
    for group in plan.groups:
        members = [
            _Scores(streams.readable(plan.variables[n]), progress) for n in group
        ]
        size = sum(each.source.size for each in members)
        removed = removed_count(size, plan.sparsities[group[0]])
        if not removed:
            continue
        if is_relative:
            for each in members:
                each.divide_by_rms()
        pruned = _pruned(members, removed)
        for n, each in zip(group, pruned, strict=True):
            streams.put(plan.variables[n], each)
            shares[n] = each.removed / each.size if each.size else 0.0
    made = changes(model, plan, shares)
    return lambda: made


class _Scores:
    """How much the entries of a weight matter.

    Args:
        source: the weight.
        progress: is told of the bytes that are read.
    """

    def __init__(self, source: Readable, progress: Progress | None = None) -> None:
        self.source, self.progress = source, progress
        self.dtype = magnitude(np.empty(0, source.dtype)).dtype
        self._scale: float | None = None

    def of(self, values: np.ndarray) -> np.ndarray:
        """Return the scores of some entries."""
        sizes = magnitude(values)
        if self._scale is None:
            return sizes
        return (sizes / np.float64(self._scale)).astype(sizes.dtype)

    def bits(self, values: np.ndarray) -> np.ndarray:
        """Return the scores as whole numbers in the same order: none is negative."""
        scores = self.of(values).astype(self.dtype, copy=False)
        return scores.view(f"u{scores.dtype.itemsize}")

    def divide_by_rms(self) -> None:
        """Let scores be relative to the root mean square of all entries."""

        def squares(cut: Cut) -> float:
            sizes = magnitude(self.source.read(*cut))
            return float(np.square(sizes, dtype=np.float64).sum())

        total = sum(self.source.map(squares, self.progress))
        scale = math.sqrt(total / max(self.source.size, 1))
        if 0 < scale < math.inf:
            self._scale = scale


def _pruned(members: Sequence[_Scores], removed: int) -> list["_Pruned"]:
    """Return weights without the entries that matter least of all together."""
    common = np.result_type(*(each.dtype for each in members))
    for each in members:
        each.dtype = common
    threshold, below = _threshold(members, removed, 8 * common.itemsize)
    missing, found = removed - sum(below), []
    for each, count in zip(members, below, strict=True):
        ties, end = _ties(each, threshold, missing)
        missing -= ties
        found.append(_Pruned(each, threshold, end, count + ties))
    return found


def _threshold(
    members: Sequence[_Scores], removed: int, width: int
) -> tuple[int, list[int]]:
    """Return the largest score that goes, and how many are below it in each weight."""
    prefix, below = 0, [0] * len(members)
    for shift in range(width - _DIGIT, -1, -_DIGIT):
        tables = [_table(each, prefix, shift, width) for each in members]
        counts = np.cumsum(sum(tables))
        digit = int(np.searchsorted(counts, removed - sum(below)))
        below = [n + int(t[:digit].sum()) for n, t in zip(below, tables, strict=True)]
        prefix = prefix << _DIGIT | digit
    return prefix, below


def _table(each: _Scores, prefix: int, shift: int, width: int) -> np.ndarray:
    """Return how many entries with a prefix have which digit after it."""

    def counted(cut: Cut) -> tuple[np.ndarray, int]:
        values = each.source.read(*cut)
        bits = each.bits(values)
        if shift + _DIGIT < width:
            bits = bits[bits >> (shift + _DIGIT) == prefix]
        digits = (bits >> shift & _LARGEST).astype(np.int64)
        return np.bincount(digits, minlength=_LARGEST + 1), int(
            np.count_nonzero(values)
        )

    total, nonzero = np.zeros(_LARGEST + 1, np.int64), 0
    for table, count in each.source.map(counted, each.progress):
        total += table
        nonzero += count
    each.source.nonzero = nonzero
    return total


def _ties(each: _Scores, threshold: int, missing: int) -> tuple[int, int]:
    """Return how many entries at a threshold go, and the place after the last one."""
    if not missing:
        return 0, 0
    found: Callable[[Cut], tuple[Cut, np.ndarray]] = lambda cut: (  # noqa: E731
        cut,
        np.flatnonzero(each.bits(each.source.read(*cut)) == threshold),
    )
    count = 0
    for (start, _), places in each.source.map(found, each.progress):
        if count + len(places) >= missing:
            return missing, start + int(places[missing - count - 1]) + 1
        count += len(places)
    return count, each.source.size


class _Pruned(Readable):
    """A weight some entries of which are zero.

    Args:
        scores: of the weight.
        threshold: the score below which an entry goes, as bits.
        end: entries before this place go at the threshold too.
        removed: number of entries that go.
    """

    def __init__(self, scores: _Scores, threshold: int, end: int, removed: int) -> None:
        super().__init__(scores.source.shape, scores.source.dtype)
        self._scores, self._threshold, self._end = scores, threshold, end
        self.removed = removed

    def read(self, start: int, stop: int) -> np.ndarray:
        """Return the entries from one place to another, an array of one axis."""
        values = np.array(self._scores.source.read(start, stop))
        bits = self._scores.bits(values)
        goes = bits < self._threshold
        ties = max(min(self._end, stop) - start, 0)
        goes[:ties] |= bits[:ties] == self._threshold
        values[goes] = 0
        return values
