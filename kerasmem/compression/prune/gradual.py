"""Gradual pruning of a model during training, following a schedule."""

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
    """Masks of one training run, updated by the schedule.

    `fetch` is called before weights are read or set during training.

    Attributes:
        plan: The `MaskPlan` of the model.
        sparsity: Current target sparsity of the pruned weights.
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
        """Returns whether the first choice needs the gradients of an update."""
        return self._matters is not None or self._grows is not None

    @property
    def final_sparsity(self) -> float:
        """Returns the final fraction of zeros in the pruned weights."""
        return self._weighed(self.plan.sparsities)

    def keep_zeros(self) -> None:
        """Masks existing zeros, to resume training or to train a sparse model.

        A weight with more zeros than its final sparsity is not masked, since pruning
        did not create these zeros.
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
        """Returns the fraction of zeros in the weights to prune."""
        values = [to_numpy(variable) for variable in self.plan.variables]
        zeros = sum(np.count_nonzero(each == 0) for each in values)
        return zeros / sum(each.size for each in values)

    def go_on(self, place: float) -> None:
        """Updates the masks for a position of the schedule."""
        schedule = self._config.schedule
        sparsities = [schedule.sparsity(place, s) for s in self.plan.sparsities]
        self._write(self._chosen(place, sparsities))
        self.sparsity = self._weighed(sparsities)

    def enforce(self) -> None:
        """Applies the masks to weights that were assigned outside of an update."""
        self._masks.enforce()

    def changes(self) -> list[WeightChange]:
        """Returns one change per weight: its sparsity, or why it is not pruned."""
        shares = [1 - mask.mean() for mask in self._current_masks]
        return changes(self.plan, shares)

    def model_sparsity(self) -> float:
        """Returns the masked fraction of all parameters of the model."""
        zero_count = sum(
            mask.size - np.count_nonzero(mask) for mask in self._current_masks
        )
        return zero_count / self._model.count_params()

    def release(self) -> None:
        """Removes the masks from the variables. A second call is a no-op."""
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
        # Copied, so that later changes of these arrays have no effect.
        self._current_masks = [np.array(mask) for mask in masks]
