"""Which weights are pruned, how far, and which are ranked together."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import keras

from kerasmem.compression.prune.allocation import (
    ERDOS_RENYI,
    ERDOS_RENYI_KERNEL,
    erdos_renyi,
)
from kerasmem.compression.prune.inputs import why_no_inputs
from kerasmem.compression.prune.output_layers import output_layers
from kerasmem.compression.prune.patterns import parse_pattern
from kerasmem.compression.prune.scores import CRITERIA, INPUTS
from kerasmem.compression.regular_expressions import check_all_mean_one, means
from kerasmem.errors import ModelError
from kerasmem.graph.kernels import is_depthwise, is_kernel, reduced_axes
from kerasmem.graph.layers import Weight, weights

if TYPE_CHECKING:
    from kerasmem.compression.prune.config import Prune


@dataclass(frozen=True)
class Plan:
    """What a `Prune` means for one model.

    Args:
        chosen: the weights that are pruned.
        sparsities: the share that each loses in the end; of a group that is ranked
            together, that of the group.
        groups: the indices of weights that are ranked together.
        left_alone: for every other weight why it is not pruned.
    """

    chosen: tuple[Weight, ...]
    sparsities: tuple[float, ...]
    groups: tuple[tuple[int, ...], ...]
    left_alone: tuple[tuple[Weight, str], ...]

    @property
    def variables(self) -> list[Any]:
        """Return the variables that are pruned."""
        return [weight.variable for weight in self.chosen]

    def criterion(self, choice: "Prune") -> str:
        """Return by what entries are ranked: within one array its scale is nothing."""
        alone = all(len(group) == 1 for group in self.groups)
        if alone and choice.criterion == "magnitude/rms":
            return "magnitude"
        return choice.criterion

    @property
    def axes(self) -> list[int]:
        """Return for each of them the axis that its layer sums over."""
        return [(reduced_axes(weight) or (0,))[-1] for weight in self.chosen]


def make_plan(model: Any, choice: "Prune") -> Plan:
    """Return which weights of `model` are pruned, and how far.

    Raises:
        ModelError: if there are none.
        ConfigError: if a pattern of `include`, `exclude` or `ratios` matches no weight.
    """
    everything = list(weights(model))
    check_all_mean_one(model, everything, choice.patterns_by_field())
    last = output_layers(model, everything)
    reasons = [(w, why_not(w, choice, id(w.owner) in last)) for w in everything]
    chosen = tuple(weight for weight, reason in reasons if reason is None)
    if not chosen:
        raise ModelError(
            f"The model {model.name!r} has nothing to prune: none of its "
            f"{len(everything)} weights is a float kernel or embedding table that is "
            "not excluded and not of the output layer, which is pruned only if "
            "include= or ratios= names it. Prune before quantizing."
        )
    return Plan(
        chosen,
        tuple(_sparsities(chosen, choice)),
        tuple(_groups(chosen, choice)),
        tuple((weight, reason) for weight, reason in reasons if reason is not None),
    )


def why_not(weight: Weight, choice: "Prune", is_output: bool) -> str | None:  # noqa: FBT001
    """Return why a weight is left alone, or None if it is pruned."""
    dtype = keras.backend.standardize_dtype(weight.variable.dtype)
    if not keras.backend.is_float_dtype(dtype):
        return f"is {dtype} already"
    if means(choice.exclude, weight):
        return "is excluded"
    if not means((*choice.include, *(p for p, _ in choice.ratios)), weight):
        if not is_kernel(weight):
            return "is no kernel or embedding table"
        if is_depthwise(weight):
            return "is depthwise: few weights, each one matters"
        if is_output:
            return "is of the output layer"
    if CRITERIA[choice.criterion] == INPUTS and (reason := why_no_inputs(weight)):
        return reason
    return parse_pattern(choice.pattern).why_not(weight.variable.shape)


def _sparsities(chosen: Sequence[Weight], choice: "Prune") -> list[float]:
    own = [_ratio(weight, choice) for weight in chosen]
    shared = [choice.sparsity] * len(chosen)
    if choice.scope in (ERDOS_RENYI, ERDOS_RENYI_KERNEL):
        rest = [index for index, ratio in enumerate(own) if ratio is None]
        shapes = [tuple(chosen[index].variable.shape) for index in rest]
        kernel = choice.scope == ERDOS_RENYI_KERNEL
        found = erdos_renyi(shapes, choice.sparsity, kernel=kernel)
        for index, sparsity in zip(rest, found, strict=True):
            shared[index] = sparsity
    return [
        other if ratio is None else ratio
        for ratio, other in zip(own, shared, strict=True)
    ]


def _groups(chosen: Sequence[Weight], choice: "Prune") -> list[tuple[int, ...]]:
    """Return the indices that are ranked together; those with a ratio stand alone."""
    together: dict[Any, list[int]] = {}
    for index, weight in enumerate(chosen):
        key: Any = index
        if _ratio(weight, choice) is None:
            if choice.scope == "global":
                key = "global"
            elif isinstance(choice.scope, tuple):
                matching = (p for p in choice.scope if means([p], weight))
                key = next(matching, index)
        together.setdefault(key, []).append(index)
    return [tuple(indices) for indices in together.values()]


def _ratio(weight: Weight, choice: "Prune") -> float | None:
    matching = (r for p, r in choice.ratios if means([p], weight))
    return next(matching, None)
