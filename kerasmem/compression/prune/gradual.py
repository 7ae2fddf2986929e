"""Pruning a model that trains, a little more at every place of its schedule."""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from kerasmem.compression.evidence import GradientEvidence
from kerasmem.compression.prune import CRITERIA, GRADIENT, INPUTS, Prune
from kerasmem.compression.prune.apply import changes, choose_masks
from kerasmem.compression.prune.masks import Masks
from kerasmem.compression.prune.plan import input_norms, make_plan
from kerasmem.compression.prune.schedules import RigL
from kerasmem.compression.prune.scores import exchange, removed_count, scores
from kerasmem.graph.values import to_numpy
from kerasmem.records import WeightChange
from kerasmem.types import Dataset, Model


class Gradual:
    """The masks of one training, drawn anew as its schedule goes on.

    Args:
        model: a built and compiled model.
        config: what to prune and when.
        data: samples, for a criterion that looks at what goes into the layers.
        fetch: called before the weights are read or set in a training that runs.

    Attributes:
        plan: which weights are pruned, and how far.
        sparsity: the share of them that is aimed at by now.
    """

    def __init__(
        self,
        model: Model,
        config: Prune,
        data: Dataset = None,
        fetch: Callable[[], Any] = lambda: None,
    ) -> None:
        self._model, self._config, self._data = model, config, data
        self._fetch = fetch
        self.plan = make_plan(model, config)
        self.sparsity = 0.0
        self._undo: list[Callable[[], None]] = []
        regrowth = config.schedule.regrowth
        self._masks = Masks(model, self.plan.variables, splicing=regrowth == "splicing")
        self._undo.append(self._masks.release)
        needs = CRITERIA[config.criterion]
        self._matters = self._watch(config.criterion) if needs == GRADIENT else None
        self._grows = self._watch("gradient") if regrowth == "gradient" else None
        self._current_masks = self._masks.read()

    @property
    def waits_for_gradients(self) -> bool:
        """Return whether nothing can be chosen before an update was seen."""
        return self._matters is not None or self._grows is not None

    @property
    def final_sparsity(self) -> float:
        """Return the share of the pruned weights that is zero in the end."""
        return self._weighed(self.plan.sparsities)

    def keep_zeros(self) -> None:
        """Mask what is zero already: a training that goes on, a model that is sparse.

        A weight with more zeros than it shall have in the end had them before.
        """
        values = [to_numpy(variable) for variable in self.plan.variables]
        limits = self._limits()
        masks = [
            each != 0
            if np.count_nonzero(each == 0) <= limit
            else np.ones(each.shape, bool)
            for each, limit in zip(values, limits, strict=True)
        ]
        if not all(mask.all() for mask in masks):
            self._write(masks)

    def share_of_zeros(self) -> float:
        """Return the share of the weights to prune that is zero."""
        values = [to_numpy(variable) for variable in self.plan.variables]
        zeros = sum(np.count_nonzero(each == 0) for each in values)
        return zeros / sum(each.size for each in values)

    def go_on(self, place: float) -> None:
        """Choose anew what is removed, as the schedule says for `place`.

        Args:
            place: where the training is, in the unit of the schedule.
        """
        schedule = self._config.schedule
        sparsities = [schedule.sparsity(place, s) for s in self.plan.sparsities]
        self._write(self._chosen(place, sparsities))
        self.sparsity = self._weighed(sparsities)

    def enforce(self) -> None:
        """Apply the masks once more, to weights that were set in another way."""
        self._masks.enforce()

    def changes(self) -> list[WeightChange]:
        """Return every weight of the model: how sparse it is, or why it is not."""
        shares = [1 - mask.mean() for mask in self._current_masks]
        return changes(self.plan, shares)

    def model_sparsity(self) -> float:
        """Return the share of all parameters of the model that is masked."""
        zero_count = sum(
            mask.size - np.count_nonzero(mask) for mask in self._current_masks
        )
        return zero_count / self._model.count_params()

    def release(self) -> None:
        """Let the weights change freely again; a second call is a no-op."""
        while self._undo:
            self._undo.pop()()

    def _chosen(self, place: float, sparsities: Sequence[float]) -> list[np.ndarray]:
        schedule, matters = self._config.schedule, self._scores()
        if isinstance(schedule, RigL) and self.sparsity:
            return self._exchanged(matters, schedule.exchanged(place))
        if schedule.regrowth != "splicing":
            matters = self._removed_first(matters)
        return choose_masks(self.plan, self._config, matters, sparsities)

    def _scores(self) -> list[np.ndarray]:
        self._fetch()
        config, values = self._config, self._masks.values()
        criterion = self.plan.criterion(config)
        return scores(criterion, values, self._evidence(), config.seed)

    def _watch(self, kind: str) -> GradientEvidence:
        optimizer, variables = self._model.optimizer, self.plan.variables
        evidence = GradientEvidence(optimizer, variables, kind)
        self._undo.append(evidence.release)
        return evidence

    def _evidence(self) -> list[np.ndarray] | None:
        if self._matters is not None:
            evidence = self._matters.read()
            if self._config.criterion == "taylor":
                self._matters.clear()
            return evidence
        if CRITERIA[self._config.criterion] == INPUTS:
            return input_norms(self._model, self._data, self.plan.chosen)
        return None

    def _exchanged(
        self, matters: Sequence[np.ndarray], share: float
    ) -> list[np.ndarray]:
        gradients = matters
        if self._grows is not None:
            gradients = self._grows.read()
            self._grows.clear()
        return [
            exchange(mask, size, gradient, share)
            for mask, size, gradient in zip(
                self._current_masks, matters, gradients, strict=True
            )
        ]

    def _removed_first(self, matters: Sequence[np.ndarray]) -> list[np.ndarray]:
        return [
            each if mask.all() else np.where(mask, each, -np.inf)
            for each, mask in zip(matters, self._current_masks, strict=True)
        ]

    def _limits(self) -> list[float]:
        sizes = [mask.size for mask in self._current_masks]
        limits: list[float] = [0.0] * len(sizes)
        for group in self.plan.groups:
            for index in group:
                most = removed_count(sizes[index], self.plan.sparsities[index])
                limits[index] = most if len(group) == 1 else sizes[index] - 1
        return limits

    def _weighed(self, sparsities: Sequence[float]) -> float:
        sizes = [mask.size for mask in self._current_masks]
        zero_count = sum(s * n for s, n in zip(sparsities, sizes, strict=True))
        return zero_count / sum(sizes)

    def _write(self, masks: list[np.ndarray]) -> None:
        self._masks.write(masks)
        # Copies of our own, to change in place.
        self._current_masks = [np.array(mask) for mask in masks]
