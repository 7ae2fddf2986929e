"""Mixed precision: a scheme for each layer under a budget.

The budget is a multiple-choice knapsack. The solver extends partial choices row by row.
It drops a partial choice if another one is smaller and less harmful.

Source: Nemhauser and Ullmann, "Discrete Dynamic Programming and Capital Allocation",
1969, here with a limited number of partial choices.
"""

from collections import defaultdict
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from itertools import groupby, product
from typing import TYPE_CHECKING, Any

import numpy as np

from kerasmem.compression.quantize.apply import WeightPlan, encoded_weights, weight_plan
from kerasmem.compression.quantize.coding import Coded
from kerasmem.compression.quantize.config import CLOSELY, NEAREST
from kerasmem.compression.quantize.layer import WeightPlace
from kerasmem.compression.quantize.on_data.sensitivity import Sensitivity
from kerasmem.errors import ModelError
from kerasmem.files.data import check_data
from kerasmem.graph.layers import Weight
from kerasmem.graph.values import array_of, to_numpy
from kerasmem.records import WeightChange
from kerasmem.types import Dataset, Model
from kerasmem.units import format_bytes

if TYPE_CHECKING:
    from kerasmem.compression.quantize.config import Quantize

_LEAST = 1e-9
"""Harm in nats below this is float rounding."""

_TRIALS, _DOUBT = 8, 0.5
"""Number of choices for randomly changed harms, and the deviation of the factors."""

_PART_BYTES = 1 << 28
"""Maximum bytes of curvatures at once. More weights need more backward passes."""

_MOST = 1 << 12
"""Maximum number of partial choices to keep. More are thinned out by size."""

Rows = Sequence[Sequence[int]]
"""Indices of the weights of each layer in a plan."""

Choices = Sequence[Sequence[int]]
"""Candidate indices per layer, for several choices."""


def mixed_plan(model: Model, config: "Quantize", data: Dataset = None) -> WeightPlan:
    """Plan the storage format of each weight within a budget, with minimal harm.

    With data, the harm of a layer is the divergence of the outputs that its rounding
    causes, from curvatures of one backward pass. Three choices are compared: the best
    one, the best one without the fewest bits, and the best single candidate for all
    layers. The result has the smallest measured divergence. Without data, harm is the
    noise in the weights.

    Raises:
        ConfigError: If a regular expression matches no weight.
        DataError: If the data does not fit the model.
        ModelError: If the budget is too small, or there is nothing to quantize.
    """
    if data is not None:
        check_data(model, data)
    plans = [_plan(model, each) for each in _candidates(config)]
    sensitivity = None if data is None else Sensitivity(model, data)
    changes, harm_of_weights = _try_plans(plans, sensitivity)
    by_layer = defaultdict[int, list[int]](list)
    for index, (weight, _) in enumerate(plans[0]):
        if any(each[index].changed for each in changes):
            by_layer[id(weight.owner)].append(index)
    rows = list(by_layer.values())
    harm = np.array([harm_of_weights[:, row].sum(1) for row in rows])
    trials = 0 if sensitivity is None else _TRIALS
    choices = _choices(*_sizes(model, config, changes, rows), harm, trials)
    numbers = np.arange(len(rows))
    total_harm = [harm[numbers, choice].sum() for choice in choices]
    if sensitivity is not None and choices[1:]:
        total_harm = [_measure(plans, rows, each, sensitivity) for each in choices]
    return _plan_of(plans, rows, choices[int(np.argmin(total_harm))])


def _try_plans(
    plans: Sequence[WeightPlan], sensitivity: Sensitivity | None
) -> tuple[list[list[WeightChange]], np.ndarray]:
    """Return the changes of each plan, and the harm by plan and weight."""
    changes: list[list[WeightChange]] = [[] for _ in plans]
    harm = np.zeros((len(plans), len(plans[0])))
    every = range(len(plans[0]))
    for part in [every] if sensitivity is None else _parts(plans):
        curvatures = dict[int, np.ndarray]()
        if sensitivity is not None:
            own = [index for index in part if _is_rounded(plans, index)]
            variables = [plans[0][index][0].variable for index in own]
            curvatures = dict(zip(own, sensitivity.curvatures(variables), strict=True))
        for name, group in groupby(range(len(plans)), lambda n: _name(plans[n])):
            pairs = list(product(group, part))
            some = [_coarse(*plans[number][index]) for number, index in pairs]
            for (number, index), (weight, codes, change) in zip(
                pairs, encoded_weights(some, f"trying {name}"), strict=True
            ):
                changes[number].append(change)
                if index in curvatures and codes is not None:
                    place = plans[number][index][1]
                    loss = _loss(weight, place, codes, curvatures[index])
                    harm[number, index] = loss
                elif change.sqnr_db is not None:
                    harm[number, index] = 10 ** (-change.sqnr_db / 10)
    return changes, harm


def _coarse(weight: Weight, place: WeightPlace | str) -> tuple[Weight, Any]:
    # The search for scales takes several times as long and changes the order little.
    if isinstance(place, WeightPlace):
        place = replace(place, closely=False)
    return weight, place


def _parts(plans: Sequence[WeightPlan]) -> Iterator[Sequence[int]]:
    """Yield ranges of weights whose curvatures fit in memory together."""
    start, total = 0, 0
    for index, (weight, _) in enumerate(plans[0]):
        size = 4 * weight.size if _is_rounded(plans, index) else 0
        if total and total + size > _PART_BYTES:
            yield range(start, index)
            start, total = index, 0
        total += size
    yield range(start, len(plans[0]))


def _is_rounded(plans: Sequence[WeightPlan], index: int) -> bool:
    return any(isinstance(plan[index][1], WeightPlace) for plan in plans)


def _loss(weight: Weight, place: Any, codes: Coded, curvature: np.ndarray) -> float:
    values = array_of(weight.variable)
    noise = place.coding.decoded(codes, values.shape) - values
    return _harm(0.5 * float((np.square(noise) * curvature).sum(dtype=np.float64)))


def _measure(
    plans: Sequence[WeightPlan],
    rows: Rows,
    numbers: Sequence[int],
    sensitivity: Sensitivity,
) -> float:
    """Return the divergence of the outputs with all weights rounded as chosen."""
    with _assigned(_plan_of(plans, rows, numbers)):
        return _harm(sensitivity.divergence())


def _harm(nats: float) -> float:
    return nats if nats >= _LEAST else 0.0


def _plan_of(
    plans: Sequence[WeightPlan], rows: Rows, numbers: Sequence[int]
) -> WeightPlan:
    options = dict[int, int]()
    for row, option in zip(rows, numbers, strict=True):
        options |= dict.fromkeys(row, option)
    return [plans[options.get(i, 0)][i] for i in range(len(plans[0]))]


def _candidates(config: "Quantize") -> Iterator["Quantize"]:
    """Yield the candidate schemes of a layer, fewest bits first.

    Groups only help with few bits, so int8 has a scale per channel. int4 has candidates
    with finer and coarser scales.
    """
    own = replace(config, scheme="int4", budget=None)
    channel: dict[str, Any] = {"granularity": "channel", "group_size": None}
    layouts: list[tuple[str, dict[str, Any]]]
    if config.granularity is None:  # the layouts that int4 has by default, and groups
        scales = CLOSELY if config.is_close else config.scales
        in_64, in_128, in_32 = (
            {"group_size": size, "scales": scales} for size in (64, 128, 32)
        )
        layouts = [("int3", in_64), ("int4", {}), ("int4", in_128), ("int4", in_32)]
    elif config.group_size is not None:
        twice = {"group_size": 2 * config.group_size}
        layouts = [("int3", {}), ("int4", channel), ("int4", twice), ("int4", {})]
    else:
        channel, layouts = {}, [("int3", {}), ("int4", {})]
    for scheme, fields in layouts:
        yield replace(own, scheme=scheme, **fields)
    int8 = replace(own, scheme="int8", **channel)
    yield int8
    plain = {"symmetric": True, "rounding": NEAREST, "scales": None}
    yield replace(int8, scheme="float16", granularity="channel", **plain)


def _plan(model: Model, config: "Quantize") -> WeightPlan:
    plan = weight_plan(model, config)
    if config.granularity != "group":
        return plan
    return [
        (weight, place if isinstance(place, str) else _with_short_scales(place))
        for weight, place in plan
    ]


def _with_short_scales(place: WeightPlace) -> WeightPlace:
    return replace(place, coding=replace(place.coding, scale_dtype="bfloat16"))


def _name(plan: WeightPlan) -> str:
    return next(
        place.coding.dtype for _, place in plan if isinstance(place, WeightPlace)
    )


@contextmanager
def _assigned(plan: WeightPlan) -> Iterator[None]:
    before = list[tuple[Any, np.ndarray]]()
    try:
        for weight, place in plan:
            if isinstance(place, WeightPlace):
                values = to_numpy(weight.variable)
                before.append((weight.variable, values))
                new_values = place.coding.decoded(place.encode(values), values.shape)
                weight.variable.assign(new_values)
        yield
    finally:
        for variable, values in before:
            variable.assign(values)


def _choices(sizes: np.ndarray, room: float, harm: np.ndarray, trials: int) -> Choices:
    """Return unique choices within the budget, as candidate indices per layer.

    Some are the best ones for randomly changed harms, as many as `trials`.
    """
    rows, count = sizes.shape
    candidates = [n for n in range(count) if sizes[:, n].sum() <= room]
    best_first = sorted(candidates, key=lambda n: harm[:, n].sum())
    choices = [[number] * rows for number in best_first[:1]]
    factors = np.random.default_rng(0).lognormal(
        sigma=_DOUBT, size=(trials, *harm.shape)
    )
    firsts = (0, harm), (1, harm), *((0, harm * each) for each in factors)
    for first, own in firsts:
        if sizes[:, first:].min(1).sum() <= room:
            best = best_options(sizes[:, first:], own[:, first:], room)
            choices.append([first + option for option in best])
    return np.unique(choices, axis=0).tolist()


def _sizes(
    model: Model, config: "Quantize", changes: Sequence[list[WeightChange]], rows: Rows
) -> tuple[np.ndarray, int]:
    inside = {index for row in rows for index in row}
    fixed_bytes = sum(
        c.after_bytes for i, c in enumerate(changes[0]) if i not in inside
    )
    sizes = np.array(
        [[sum(each[i].after_bytes for i in row) for each in changes] for row in rows]
    )
    budget = config.budget.bytes if config.budget else 0
    least = fixed_bytes + int(sizes.min(1).sum())
    if least > budget:
        raise ModelError(
            f"The weights of the model {model.name!r} take at least "
            f"{format_bytes(least)}, {format_bytes(fixed_bytes)} of them not "
            f"quantized. Received: {config.budget!r}."
        )
    return sizes, budget - fixed_bytes


def best_options(sizes: np.ndarray, harm: np.ndarray, budget: float) -> list[int]:
    """Return the option of each row that minimizes the total harm within a budget.

    The result is optimal unless partial choices were thinned out. `sizes` and `harm`
    have shape `(rows, options)`. `budget` is at least the sum of the smallest sizes.

    Example:
        >>> sizes = np.array([[1, 2], [1, 2]])
        >>> best_options(sizes, np.array([[5.0, 1.0], [9.0, 1.0]]), budget=3)
        [0, 1]
    """
    # Minimum size of all rows after each row.
    behind = np.cumsum(sizes.min(1)[::-1])[::-1] - sizes.min(1)
    size, total = np.zeros(1, sizes.dtype), np.zeros(1)
    parents = []
    for row, least in enumerate(behind):
        size = (size[:, None] + sizes[row]).reshape(-1)
        total = (total[:, None] + harm[row]).reshape(-1)
        order = np.lexsort((total, size))
        order = order[size[order] + least <= budget]
        before = np.minimum.accumulate(total[order])
        remaining = order[np.append(True, total[order][1:] < before[:-1])]
        remaining = _thinned(remaining, size[remaining])
        parents.append(remaining)
        size, total = size[remaining], total[remaining]
    place, options = len(size) - 1, list[int]()  # the last choice has the least harm
    for remaining in reversed(parents):
        place, option = divmod(int(remaining[place]), sizes.shape[1])
        options.append(option)
    return options[::-1]


def _thinned(remaining: np.ndarray, size: np.ndarray) -> np.ndarray:
    if len(remaining) <= _MOST:
        return remaining
    cell = (size - size[0]) * (_MOST / (size[-1] - size[0]))
    cell = np.floor(cell).astype(np.int64)
    return remaining[np.append(cell[1:] != cell[:-1], True)]
