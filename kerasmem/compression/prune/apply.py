"""One-shot pruning: sets the least important weights to zero."""

import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import keras
import numpy as np

from kerasmem.compression.evidence import sums_over_samples
from kerasmem.compression.prune import CRITERIA, GRADIENT, INPUTS, UNSTRUCTURED, Prune
from kerasmem.compression.prune.plan import MaskPlan, changes, input_norms, make_plan
from kerasmem.compression.prune.scores import (
    magnitude,
    parse_pattern,
    removed_count,
    scores,
)
from kerasmem.compression.technique import Context
from kerasmem.files.threads import map_entries, map_pieces
from kerasmem.graph.values import array_of, nbytes, to_numpy
from kerasmem.records import WeightChange
from kerasmem.stages import Progress
from kerasmem.types import Dataset, Model, Variable


def prune_weights(
    model: Model, config: Prune, context: Context
) -> tuple[Any, list[WeightChange]]:
    """Prunes a model in place. Returns the model and one change per weight."""
    plan = make_plan(model, config)
    if is_by_magnitude(config):
        return model, prune_by_magnitude(plan, config)
    values = [to_numpy(variable) for variable in plan.variables]
    evidence = gather(model, plan, config.criterion, context.data)
    matters = scores(plan.criterion(config), values, evidence, config.seed)
    masks = choose_masks(plan, config, matters, plan.sparsities)
    for variable, mask in zip(plan.variables, masks, strict=True):
        zero_out(variable, mask)
    return model, changes(plan, [1 - mask.mean() for mask in masks])


def choose_masks(
    plan: MaskPlan,
    config: Prune,
    matters: Sequence[np.ndarray],
    sparsities: Sequence[float],
) -> list[np.ndarray]:
    """Returns one bool mask per weight of a plan, False for entries to remove.

    `matters` contains the importance scores of each weight. `sparsities` are equal
    within a group.
    """
    pattern = parse_pattern(config.pattern)
    axes = plan.axes
    masks: list[Any] = [None] * len(matters)
    for group in plan.groups:
        group_masks = pattern.masks(
            [matters[index] for index in group],
            sparsities[group[0]],
            [axes[index] for index in group],
        )
        for index, mask in zip(group, group_masks, strict=True):
            masks[index] = mask
    return masks


def zero_out(variable: Variable, mask: np.ndarray) -> None:
    """Sets a variable to zero where `mask` is False."""
    value = to_numpy(variable)
    variable.assign(np.where(mask, value, np.zeros((), value.dtype)))


def gather(
    model: Model, plan: MaskPlan, criterion: str, data: Dataset
) -> list[np.ndarray] | None:
    """Returns the evidence that a criterion needs for each weight, or None.

    Gradient criteria need a compiled model and labels.
    """
    if CRITERIA[criterion] == INPUTS:
        return input_norms(model, data, plan.chosen)
    if CRITERIA[criterion] == GRADIENT:
        return sums_over_samples(model, plan.variables, criterion, data)
    return None


_DIGIT = 16
_LARGEST = (1 << _DIGIT) - 1


def is_by_magnitude(config: Prune) -> bool:
    """Returns whether entries are ranked by absolute value, without a pattern."""
    is_size = config.criterion in ("magnitude", "magnitude/rms")
    return is_size and config.pattern == UNSTRUCTURED


def prune_by_magnitude(plan: MaskPlan, config: Prune) -> list[WeightChange]:
    """Sets the smallest weight entries to zero, in place. Returns the changes.

    Holds one weight and its new value in memory at a time. Finds the threshold by a
    radix search over the bits of the scores, 16 bits per pass.
    """
    is_relative = plan.criterion(config) == "magnitude/rms"
    shares = [0.0] * len(plan.chosen)
    # One pass each for the root mean square, the two digits and the ties.
    passes = 3 + is_relative
    progress = Progress("prune", passes * sum(map(nbytes, plan.variables)))
    for group in plan.groups:
        members = [_Scores(plan.variables[n], progress) for n in group]
        count_to_remove = removed_count(
            sum(e.size for e in members), plan.sparsities[group[0]]
        )
        if not count_to_remove:
            continue
        if is_relative:
            for each in members:
                each.divide_by_rms()
        counts = _remove(members, count_to_remove)
        for n, each, count in zip(group, members, counts, strict=True):
            shares[n] = count / each.size if each.size else 0.0
    return changes(plan, shares)


class _Scores:
    """Importance scores of the entries of one weight, read in pieces."""

    def __init__(self, variable: Variable, progress: Progress) -> None:
        self.variable, self.size = variable, math.prod(variable.shape)
        dtype = keras.backend.standardize_dtype(variable.dtype)
        self.dtype = magnitude(np.empty(0, dtype)).dtype
        self._scale, self._progress = None, progress

    def map(self, function: Callable[[int, np.ndarray], Any]) -> Iterator[Any]:
        return map_pieces(function, array_of(self.variable), self._progress)

    def bits(self, values: np.ndarray) -> np.ndarray:
        # Scores are not negative, so their bits as integers have the same order.
        sizes = magnitude(values)
        if self._scale is not None:
            sizes = (sizes / self._scale).astype(sizes.dtype)
        return sizes.astype(self.dtype, copy=False).view(f"u{self.dtype.itemsize}")

    def divide_by_rms(self) -> None:

        def squares(_: int, values: np.ndarray) -> float:
            return float(np.square(magnitude(values), dtype=np.float64).sum())

        scale = math.sqrt(sum(self.map(squares)) / max(self.size, 1))
        if 0 < scale < math.inf:
            self._scale = np.float64(scale)

    def counts(self, prefix: int, shift: int) -> np.ndarray:
        """Returns a histogram of the next digit of scores that begin with a prefix."""
        width = 8 * self.dtype.itemsize

        def counted(_: int, values: np.ndarray) -> np.ndarray:
            bits = self.bits(values)
            if shift + _DIGIT < width:
                bits = bits[bits >> (shift + _DIGIT) == prefix]
            digits = (bits >> shift & _LARGEST).astype(np.int64)
            return np.bincount(digits, minlength=_LARGEST + 1)

        return sum(self.map(counted), np.zeros(_LARGEST + 1, np.int64))

    def end_of_ties(self, threshold: int, missing: int) -> tuple[int, int]:
        """Returns the number of ties to remove and the index after the last one."""
        if not missing:
            return 0, 0

        def ties(start: int, values: np.ndarray) -> np.ndarray:
            return start + np.flatnonzero(self.bits(values) == threshold)

        count = 0
        for places in self.map(ties):
            if count + len(places) >= missing:
                return missing, int(places[missing - count - 1]) + 1
            count += len(places)
        return count, self.size

    def remove(self, threshold: int, end: int) -> None:
        """Sets entries below a threshold, and ties before `end`, to zero."""

        def zeroed(start: int, values: np.ndarray) -> np.ndarray:
            bits, ties = self.bits(values), max(end - start, 0)
            goes = bits < threshold
            goes[:ties] |= bits[:ties] == threshold
            return np.where(goes, np.zeros((), values.dtype), values)

        self.variable.assign(map_entries(zeroed, array_of(self.variable)))


def _remove(members: Sequence[_Scores], removed: int) -> list[int]:
    common = np.result_type(*(each.dtype for each in members))
    for each in members:
        each.dtype = common
    threshold, below = _threshold(members, removed, 8 * common.itemsize)
    missing, counts = removed - sum(below), []
    for each, count in zip(members, below, strict=True):
        ties, end = each.end_of_ties(threshold, missing)
        missing -= ties
        each.remove(threshold, end)
        counts.append(count + ties)
    return counts


def _threshold(
    members: Sequence[_Scores], removed: int, width: int
) -> tuple[int, list[int]]:
    prefix, below = 0, [0] * len(members)
    for shift in range(width - _DIGIT, -1, -_DIGIT):
        tables = [each.counts(prefix, shift) for each in members]
        counts = np.cumsum(sum(tables))
        digit = int(np.searchsorted(counts, removed - sum(below)))
        below = [n + int(t[:digit].sum()) for n, t in zip(below, tables, strict=True)]
        prefix = prefix << _DIGIT | digit
    return prefix, below
