"""Sensitivity of a model's metric to pruning single weights.

Source: Han, Pool, Tran and Dally, "Learning both Weights and Connections for Efficient
Neural Networks", 2015.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from kerasmem.checks import Real
from kerasmem.compression.judge import first_metric, is_better_if_higher
from kerasmem.compression.prune import Prune
from kerasmem.compression.prune.apply import choose_masks, gather, zero_out
from kerasmem.compression.prune.plan import make_plan
from kerasmem.compression.prune.scores import scores
from kerasmem.errors import ConfigError, ModelError
from kerasmem.files.data import fit_arguments
from kerasmem.graph.clone import clone
from kerasmem.graph.values import to_numpy
from kerasmem.stats.bisection import bisect
from kerasmem.types import Dataset, Model

SPARSITIES = (0.5, 0.7, 0.8, 0.9, 0.95)
_SHARE = Real("a fraction,", least=0, below=1)
_HALVINGS = 60


@dataclass(frozen=True)
class WeightSensitivity:
    """Metric of the model when only one weight is pruned.

    Args:
        weight: Path of the weight.
        size: Number of entries of the weight.
        values: Metric at each sparsity.
    """

    weight: str
    size: int
    values: tuple[float, ...]


@dataclass(frozen=True)
class Sensitivity:
    """Metric of a model as a function of the sparsity of each weight.

    Args:
        metric: Name of the metric.
        baseline: Metric before pruning.
        sparsities: Tested sparsities, in ascending order.
        weights: Measurements of each weight.
    """

    metric: str
    baseline: float
    sparsities: tuple[float, ...]
    weights: tuple[WeightSensitivity, ...]

    def drops(self, weight: WeightSensitivity) -> np.ndarray:
        """Returns the drop of the metric at each sparsity, as a running maximum."""
        with np.errstate(invalid="ignore", over="ignore"):  # a loss may be infinite
            change = np.array(weight.values) - self.baseline
        worse = -change if is_better_if_higher(self.metric) else change
        # A better metric at a higher sparsity is measurement noise.
        return np.maximum.accumulate(np.maximum(np.nan_to_num(worse, nan=np.inf), 0.0))

    def ratios(self, sparsity: float) -> dict[str, float]:
        """Returns a sparsity per weight at which all weights cost the same.

        Interpolates linearly between the measured sparsities. No weight gets more than
        the highest measured sparsity.

        Args:
            sparsity: Float in [0, 1). Fraction of all entries of these weights to set
                to zero.

        Returns:
            Regular expressions that each match one weight, for `Prune(..., ratios=)`.

        Raises:
            ConfigError: If `sparsity` is higher than the highest measured sparsity.
        """
        _SHARE.check("Sensitivity.ratios", "sparsity", sparsity)
        if sparsity > self.sparsities[-1]:
            raise ConfigError(
                "Expected a sparsity of at most the highest measured one, "
                f"{self.sparsities[-1]:g}. Received: sparsity={sparsity!r}."
            )
        sizes = [weight.size for weight in self.weights]
        drops = np.concatenate([self.drops(weight) for weight in self.weights])

        def is_enough(drop: float) -> bool:
            ratios = [self._at(weight, drop) for weight in self.weights]
            return bool(np.average(ratios, weights=sizes) >= sparsity)

        most = 1.0 + float(drops[np.isfinite(drops)].max(initial=0.0))
        drop = bisect(is_enough, good=most, bad=0.0, halvings=_HALVINGS)
        # A copy of the model may have another name before the path, or none. The first
        # match counts, and a path may end in another path. Thus the longest come first.
        longest_first = sorted(self.weights, key=lambda w: -len(w.weight))
        return {
            f"(^|/){re.escape(weight.weight)}$": round(self._at(weight, drop), 6)
            for weight in longest_first
        }

    def table(self) -> str:
        """Returns the measurements as text, one line per weight."""
        heads = "".join(f"{sparsity:>9.0%}" for sparsity in self.sparsities)
        width = max(len("weight"), *(len(w.weight) for w in self.weights))
        lines = [f"{self.metric}, {self.baseline:.4f} before pruning"]
        lines += [f"{'weight':<{width}}{'entries':>12}{heads}"]
        for weight in self.weights:
            values = "".join(f"{value:>9.4f}" for value in weight.values)
            lines.append(f"{weight.weight:<{width}}{weight.size:>12}{values}")
        return "\n".join(lines)

    def _at(self, weight: WeightSensitivity, cost: float) -> float:
        places = np.array([0.0, *self.sparsities])
        drops = np.array([0.0, *self.drops(weight)])
        index = int(np.searchsorted(drops, cost, side="right"))
        if index == len(places):
            return float(places[-1])
        part = (cost - drops[index - 1]) / (drops[index] - drops[index - 1])
        return float(places[index - 1] + part * (places[index] - places[index - 1]))


def sensitivity(
    model: Model,
    data: Dataset,
    *,
    sparsities: Sequence[float] = SPARSITIES,
    prune: Prune | None = None,
    batch_size: int = 32,
) -> Sensitivity:
    """Measures the drop of the metric as single weights of `model` are pruned.

    Prunes every weight at every sparsity in a copy of the model, without training.

    Args:
        model: A built and compiled model.
        data: Samples with labels for the evaluation, and for criteria that need data,
            in any form listed in `kerasmem.files.data`.
        sparsities: Sparsities to test, each in (0, 1). Defaults to
            `(0.5, 0.7, 0.8, 0.9, 0.95)`.
        prune: Pruning configuration; its sparsity is ignored. Defaults to pruning by
            magnitude.
        batch_size: Number of samples per batch. Defaults to 32.

    Raises:
        ConfigError: If a sparsity is out of range.
        ModelError: If the model is not compiled or has no weights to prune.
    """
    numbers = [_SHARE.check("sensitivity", "sparsities", each) for each in sparsities]
    in_order = tuple(sorted(numbers))
    if not in_order or in_order[0] == 0:
        raise ConfigError(
            "Expected sparsities of sensitivity above 0. "
            f"Received: sparsities={sparsities!r}."
        )
    if not model.compiled:
        raise ModelError(
            f"The model {model.name!r} is not compiled. "
            "Compile it with a loss and metrics."
        )
    config = prune or Prune(in_order[0])
    copy = clone(model)
    plan = make_plan(copy, config)
    before = [to_numpy(variable).copy() for variable in plan.variables]
    evidence = gather(copy, plan, config.criterion, data)
    matters = scores(plan.criterion(config), before, evidence, config.seed)
    metric, baseline = _judged(copy, data, batch_size)
    values_by_weight: list[list[float]] = [[] for _ in before]
    for sparsity in in_order:
        masks = choose_masks(plan, config, matters, [sparsity] * len(before))
        for index, variable in enumerate(plan.variables):
            zero_out(variable, masks[index])
            values_by_weight[index].append(_judged(copy, data, batch_size)[1])
            variable.assign(before[index])
    measurements = [
        WeightSensitivity(
            weight.path.removeprefix(f"{model.name}/"), weight.size, tuple(values)
        )
        for weight, values in zip(plan.chosen, values_by_weight, strict=True)
    ]
    return Sensitivity(metric, baseline, in_order, tuple(measurements))


def _judged(model: Model, data: Dataset, batch_size: int) -> tuple[str, float]:
    metrics = model.evaluate(
        **fit_arguments(data, batch_size), verbose=0, return_dict=True
    )
    name = first_metric(metrics)
    return name, float(metrics[name])
