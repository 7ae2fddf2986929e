"""Fewer bits where they harm least: a scheme for each layer, under a budget."""

from collections import defaultdict
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from kerasmem.compression.quantize.apply import Exclude
from kerasmem.compression.quantize.in_blocks import losses, quantize_in_blocks
from kerasmem.compression.quantize.repair import quantize_and_repair
from kerasmem.compression.working import LazyChanges, Streams
from kerasmem.errors import ModelError
from kerasmem.graph.clone import clone
from kerasmem.graph.layers import weights
from kerasmem.records import WeightChange
from kerasmem.units import format_bytes

if TYPE_CHECKING:
    from kerasmem.compression.quantize.config import Quantize


CANDIDATES = ("int4", "int8", "float16")


def quantize_mixed(
    model: Any, config: "Quantize", data: Any = None
) -> list[WeightChange]:
    """Store the weights of `model` in as many bits as a budget allows, in place.

    Every scheme is tried on every layer, one at a time. Layers get more bits in the
    order of what that gains: noise taken off what the layer makes of `data`, or without
    data off its weights, per byte.

    Args:
        model: a built model.
        config: the budget, and what the schemes share.
        data: samples in any form that `kerasmem.files.data` lists, or None.

    Returns:
        One change per weight of the model, changed or left alone and why.

    Raises:
        ModelError: if the budget is too small, or there is nothing to quantize.
    """
    tried = {name: _candidate_config(config, name) for name in CANDIDATES}
    if data is None and not config.bias_correction:
        losses_of = _losses_of(model, tried, Streams(lambda _: None))
    else:
        losses_of = {
            name: quantize_and_repair(clone(model), each, data)
            for name, each in tried.items()
        }
    samples = data if config.bias_correction else None
    rounds, changes = _rounds(model, config, losses_of)
    for name, exclude in rounds:
        quantize_and_repair(model, tried[name], samples, exclude)
    return changes


def mixed_in_blocks(model: Any, config: "Quantize", streams: Streams) -> LazyChanges:
    """Do what `quantize_mixed` does without data to a described model.

    Args:
        model: the model; it is changed in place.
        config: the budget, and what the schemes share.
        streams: get the codes.

    Raises:
        ModelError: as by `quantize_mixed`.
    """
    tried = {name: _candidate_config(config, name) for name in CANDIDATES}
    rounds, changes = _rounds(model, config, _losses_of(model, tried, streams))
    for name, exclude in rounds:
        quantize_in_blocks(model, tried[name], streams, exclude)
    return lambda: changes


def _losses_of(
    model: Any, tried: dict[str, "Quantize"], streams: Streams
) -> dict[str, list[WeightChange]]:
    """Return what each scheme would do to every weight of a model, left as it is."""
    return {name: losses(model, each, streams) for name, each in tried.items()}


def _rounds(
    model: Any, config: "Quantize", losses_of: dict[str, list[WeightChange]]
) -> tuple[list[tuple[str, Exclude]], list[WeightChange]]:
    """Return schemes, each with what tells of weights that get none of it.

    And what then becomes of every weight.

    Args:
        model: the model.
        config: the budget.
        losses_of: what each scheme would do to every weight.
    """
    all_weights, rows = list(weights(model)), defaultdict[int, list[int]](list)
    for index, weight in enumerate(all_weights):
        if any(changes[index].changed for changes in losses_of.values()):
            rows[id(weight.block)].append(index)
    chosen = _chosen(model, config, losses_of, list(rows.values()))
    changes, variables = list(losses_of[CANDIDATES[0]]), defaultdict[str, set[int]](set)
    for indices, name in zip(rows.values(), chosen, strict=True):
        for index in indices:
            changes[index] = losses_of[name][index]
            variables[name].add(id(all_weights[index].variable))

    def all_but(own: set[int]) -> Exclude:
        return lambda weight: id(weight.variable) not in own

    names = [name for name in CANDIDATES if name in variables]
    return [(name, all_but(variables[name])) for name in names], changes


def _candidate_config(config: "Quantize", name: str) -> "Quantize":
    """Return what a candidate does; float16 has no scales to share."""
    plain: dict[str, Any] = {}
    if name == "float16":
        fields = ("granularity", "group_size", "symmetric")
        plain = {field: getattr(type(config), field) for field in fields}
    return replace(config, scheme=name, budget=None, **plain)


def _chosen(
    model: Any,
    config: "Quantize",
    losses_of: dict[str, list[WeightChange]],
    rows: list[list[int]],
) -> list[str]:
    """Return the name of a scheme for each layer."""
    first = losses_of[CANDIDATES[0]]
    inside = {index for indices in rows for index in indices}
    fixed = sum(c.after_bytes for i, c in enumerate(first) if i not in inside)
    options = [
        [[losses_of[name][i] for i in each] for name in CANDIDATES] for each in rows
    ]
    sizes = np.array(
        [[sum(c.after_bytes for c in o) for o in each] for each in options]
    )
    noise = np.array([[_noise(o) for o in each] for each in options])
    budget = config.budget.bytes if config.budget else 0
    least = fixed + int(sizes.min(1).sum())
    if least > budget:
        raise ModelError(
            f"The weights of the model {model.name!r} take at least "
            f"{format_bytes(least)}, {format_bytes(fixed)} of them not quantized. "
            f"Received: {config.budget!r}."
        )
    return [CANDIDATES[n] for n in best_options(sizes, noise, budget - fixed)]


def _noise(changes: list[WeightChange]) -> float:
    """Return the noise that is added to a layer, as a share of the signal.

    A layer may have others within it: their mean counts.
    """
    outputs = [c.output_sqnr_db for c in changes if c.output_sqnr_db is not None]
    if outputs:
        return sum(10 ** (-ratio / 10) for ratio in outputs) / len(outputs)
    ratios = [c.sqnr_db for c in changes if c.sqnr_db is not None]
    return sum(10 ** (-ratio / 10) for ratio in ratios)


def best_options(sizes: np.ndarray, harm: np.ndarray, budget: float) -> list[int]:
    """Return for each row the number of an option, so that harm adds up to little.

    All begin with their smallest option; then, again and again, the change is made that
    takes off most harm for what it adds in size, as long as the budget allows one.

    Args:
        sizes: of shape `(rows, options)`.
        harm: of the same shape.
        budget: most that the sizes may add up to.

    Example:
        >>> sizes = np.array([[1, 2], [1, 2]])
        >>> best_options(sizes, np.array([[5.0, 1.0], [9.0, 1.0]]), budget=3)
        [0, 1]
    """
    rows = np.arange(len(sizes))
    # Of equally small ones the one that harms least.
    now = np.lexsort((harm, sizes), axis=1)[:, 0]
    remaining = budget - sizes[rows, now].sum()
    while True:
        larger = sizes - sizes[rows, now][:, None]
        less = harm[rows, now][:, None] - harm
        allowed = (less > 0) & (larger <= remaining)
        if not allowed.any():
            return now.tolist()
        gain = np.where(allowed, less / np.maximum(larger, 1e-9), -np.inf)
        row, option = np.unravel_index(np.argmax(gain), gain.shape)
        remaining -= larger[row, option]
        now[row] = option
