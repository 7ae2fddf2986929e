"""Which weights are pruned, how far, and which are ranked together.

Source: Evci, Gale, Menick, Castro and Elsen, "Rigging the Lottery: Making All Tickets
Winners", 2020 (Erdos-Renyi and its version for kernels).
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import keras

from kerasmem.compression.account import account
from kerasmem.compression.prune.config import (
    CRITERIA,
    ERDOS_RENYI,
    ERDOS_RENYI_KERNEL,
    INPUTS,
)
from kerasmem.compression.prune.inputs import why_no_inputs
from kerasmem.compression.prune.patterns import parse_pattern
from kerasmem.compression.regular_expressions import (
    check_every_pattern_matches,
    matches,
)
from kerasmem.errors import ModelError
from kerasmem.graph.calls import Trace, trace
from kerasmem.graph.kernels import is_depthwise, is_kernel, reduced_axes
from kerasmem.graph.layers import Weight, sublayers, weights
from kerasmem.records import WeightChange

if TYPE_CHECKING:
    from kerasmem.compression.prune.config import Prune

_NOTHING_GOES = "has too few entries in a row, or too large ones, for any to go"


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

    def criterion(self, config: "Prune") -> str:
        """Return by what entries are ranked: within one array its scale is nothing."""
        alone = all(len(group) == 1 for group in self.groups)
        if alone and config.criterion == "magnitude/rms":
            return "magnitude"
        return config.criterion

    @property
    def axes(self) -> list[int]:
        """Return for each of them the axis that its layer sums over."""
        return [(reduced_axes(weight) or (0,))[-1] for weight in self.chosen]


def make_plan(model: Any, config: "Prune") -> Plan:
    """Return which weights of `model` are pruned, and how far.

    Raises:
        ModelError: if there are none.
        ConfigError: if a pattern of `include`, `exclude` or `ratios` matches no weight.
    """
    everything = list(weights(model))
    check_every_pattern_matches(model, everything, config.patterns_by_field())
    last = output_layers(model, everything)
    reasons = [(w, why_not(w, config, id(w.owner) in last)) for w in everything]
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
        tuple(_sparsities(chosen, config)),
        tuple(_groups(chosen, config)),
        tuple((weight, reason) for weight, reason in reasons if reason is not None),
    )


def why_not(weight: Weight, config: "Prune", is_output: bool) -> str | None:  # noqa: FBT001
    """Return why a weight is left alone, or None if it is pruned."""
    dtype = keras.backend.standardize_dtype(weight.variable.dtype)
    if not keras.backend.is_float_dtype(dtype):
        return f"is {dtype} already"
    if matches(config.exclude, weight):
        return "is excluded"
    if not matches((*config.include, *(p for p, _ in config.ratios)), weight):
        if not is_kernel(weight):
            return "is no kernel or embedding table"
        if is_depthwise(weight):
            return "is depthwise: few weights, each one matters"
        if is_output:
            return "is of the output layer"
    if CRITERIA[config.criterion] == INPUTS and (reason := why_no_inputs(weight)):
        return reason
    return parse_pattern(config.pattern).why_not(weight.variable.shape)


def _sparsities(chosen: Sequence[Weight], config: "Prune") -> list[float]:
    own = [_ratio(weight, config) for weight in chosen]
    shared = [config.sparsity] * len(chosen)
    if config.scope in (ERDOS_RENYI, ERDOS_RENYI_KERNEL):
        rest = [index for index, ratio in enumerate(own) if ratio is None]
        shapes = [tuple(chosen[index].variable.shape) for index in rest]
        kernel = config.scope == ERDOS_RENYI_KERNEL
        found = erdos_renyi(shapes, config.sparsity, kernel=kernel)
        for index, sparsity in zip(rest, found, strict=True):
            shared[index] = sparsity
    return [
        other if ratio is None else ratio
        for ratio, other in zip(own, shared, strict=True)
    ]


def _groups(chosen: Sequence[Weight], config: "Prune") -> list[tuple[int, ...]]:
    """Return the indices that are ranked together; those with a ratio stand alone."""
    together: dict[Any, list[int]] = {}
    for index, weight in enumerate(chosen):
        key: Any = index
        if _ratio(weight, config) is None:
            if config.scope == "global":
                key = "global"
            elif isinstance(config.scope, tuple):
                matching = (p for p in config.scope if matches([p], weight))
                key = next(matching, index)
        together.setdefault(key, []).append(index)
    return [tuple(indices) for indices in together.values()]


def _ratio(weight: Weight, config: "Prune") -> float | None:
    matching = (r for p, r in config.ratios if matches([p], weight))
    return next(matching, None)


def erdos_renyi(
    shapes: Sequence[Sequence[int]], sparsity: float, *, kernel: bool
) -> list[float]:
    """Return a sparsity per weight, lower where a weight is small; `sparsity` in all.

    The share that stays is proportional to the sum of the axes over their product,
    and at most 1.

    Args:
        shapes: those of the weights, of two axes or more.
        sparsity: share of all entries to remove, in [0, 1).
        kernel: whether all axes count, or only the last two, inputs and outputs.

    Example:
        >>> [round(s, 3) for s in erdos_renyi([(8, 8), (64, 64)], 0.8, kernel=False)]
        [0.0, 0.812]
    """
    sizes = [math.prod(shape) for shape in shapes]
    counted = [tuple(shape) if kernel else tuple(shape)[-2:] for shape in shapes]
    raw = [sum(axes) / math.prod(axes) for axes in counted]
    full: set[int] = set()
    while True:
        rest = [i for i in range(len(sizes)) if i not in full]
        room = (1 - sparsity) * sum(sizes) - sum(sizes[i] for i in full)
        share = room / sum(raw[i] * sizes[i] for i in rest) if rest else 0.0
        over = {i for i in rest if share * raw[i] >= 1}
        if not over:
            return [0.0 if i in full else 1 - share * raw[i] for i in range(len(raw))]
        full |= over


def output_layers(model: Any, weights: list[Weight]) -> set[int]:
    """Return the ids of the layers that come last of those with a kernel.

    They are found by walking back from the outputs of the model. Of a model without a
    graph it is the last layer with a kernel that it lists. Where no other layer has a
    kernel, depthwise ones aside, there are none.

    Args:
        model: a built `keras.Model`.
        weights: all of its weights.
    """
    kernels = [weight for weight in weights if is_kernel(weight)]
    last = _last(model, {id(weight.owner) for weight in kernels})
    others = {id(weight.owner) for weight in kernels if not is_depthwise(weight)}
    return set() if last >= others else last


def _last(model: Any, with_kernel: set[int]) -> set[int]:
    found = trace(model, 1)
    if found is not None:
        return _makers(found, with_kernel)
    for layer in reversed(model.layers):
        inside = {id(each) for each in sublayers(layer)} & with_kernel
        if inside:
            return _last(layer, inside) if isinstance(layer, keras.Model) else inside
    return set()


def _makers(found: Trace, with_kernel: set[int]) -> set[int]:
    """Return the layers with a kernel that are met first on the way back."""
    makers = {id(x): call for call in found.calls for x in call.outputs}
    last: set[int] = set()
    waiting, seen = list(found.outputs), set()
    while waiting:
        tensor = waiting.pop()
        call = makers.get(id(tensor))
        if call is None or id(tensor) in seen:
            continue
        seen.add(id(tensor))
        inside = {id(layer) for layer in _inside(call.operation)} & with_kernel
        last |= inside
        if not inside:
            waiting += call.inputs
    return last


def _inside(operation: Any) -> list[Any]:
    return sublayers(operation) if isinstance(operation, keras.layers.Layer) else []


def changes(model: Any, plan: Plan, shares: Sequence[float]) -> list[WeightChange]:
    """Return one change per weight of the model, with its share of zeros or why not.

    Args:
        model: the model.
        plan: which of its weights are pruned.
        shares: the share of zeros in each of them, 0 to 1.
    """
    details = {id(weight.variable): reason for weight, reason in plan.left_alone}
    pruned: set[int] = set()
    for variable, share in zip(plan.variables, shares, strict=True):
        details[id(variable)] = f"{share:.1%} zero" if share else _NOTHING_GOES
        if share:
            pruned.add(id(variable))
    return [
        account(
            weight,
            "prune",
            details[id(weight.variable)],
            changed=id(weight.variable) in pruned,
        )
        for weight in weights(model)
    ]
