"""Mixed precision: a scheme for each layer under a budget.

The budget is a multiple-choice knapsack. The solver extends partial choices row by row.
It drops a partial choice if another one is smaller and less harmful.

Source: Nemhauser and Ullmann, "Discrete Dynamic Programming and Capital Allocation",
1969, here with a limited number of partial choices.
"""

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import replace
from itertools import chain
from typing import TYPE_CHECKING, Any

import numpy as np

from kerasmem.compression.quantize.apply import WeightPlan, losses, weight_plan
from kerasmem.compression.quantize.layer import WeightPlace
from kerasmem.compression.quantize.on_data.sensitivity import sensitivities
from kerasmem.errors import ModelError
from kerasmem.files.data import check_data
from kerasmem.graph.values import to_numpy
from kerasmem.records import WeightChange
from kerasmem.types import Dataset, Model
from kerasmem.units import format_bytes

if TYPE_CHECKING:
    from kerasmem.compression.quantize.config import Quantize

_LEAST_NOISE = 1e-6
"""Noise below this fraction of the int3 noise counts as zero."""

_LEAST = 1e-9
"""Harm in nats below this is float rounding."""

_TINY = 1e-300

_MOST = 1 << 12
"""Maximum number of partial choices to keep. More are thinned out by size."""

Rows = Sequence[Sequence[int]]
"""Indices of the weights of each layer in a plan."""

Choices = Sequence[Sequence[int]]
"""Candidate indices per layer, for several choices."""


def mixed_plan(model: Model, config: "Quantize", data: Dataset = None) -> WeightPlan:
    """Plan the storage format of each weight within a budget, with minimal harm.

    With data, the harm of a layer is the change of the model's outputs when only that
    layer is rounded. The plan compares three kinds of choices: the best one, the best
    one without the fewest bits, and each scheme for all layers. It selects the one with
    the smallest change of the outputs with all layers rounded. Without data, harm is
    the noise in the weights. Group scales are stored in 16 bits.

    Raises:
        ConfigError: If a regular expression matches no weight.
        DataError: If the data does not fit the model.
        ModelError: If the budget is too small, or there is nothing to quantize.
    """
    if data is not None:
        check_data(model, data)
    plans = [_plan(model, each) for each in _candidates(config)]
    changes = [losses(plan, _name(plan)) for plan in plans]
    by_layer = defaultdict[int, list[int]](list)
    for index, (weight, _) in enumerate(plans[0]):
        if any(each[index].changed for each in changes):
            by_layer[id(weight.owner)].append(index)
    rows = list(by_layer.values())
    harm = np.array([[_noise(each, row) for each in changes] for row in rows])
    if data is not None:
        harm = _harm(model, plans, rows, harm, data)
    choices = _choices(*_sizes(model, config, changes, rows), harm)
    if data is None:
        total_harm = _sums(harm, choices)
    else:
        total_harm = _lost(model, plans, rows, choices, data)
    return _plan_of(plans, rows, choices[int(np.argmin(total_harm))])


def _plan_of(
    plans: Sequence[WeightPlan], rows: Rows, numbers: Sequence[int]
) -> WeightPlan:
    options = dict[int, int]()
    for row, option in zip(rows, numbers, strict=True):
        options |= dict.fromkeys(row, option)
    return [plans[options.get(i, 0)][i] for i in range(len(plans[0]))]


def _candidates(config: "Quantize") -> Iterator["Quantize"]:
    """Yield the candidate schemes of a layer, fewest bits first.

    Groups only help with few bits, so int8 has a scale per channel. int4 has two more
    candidates with coarser scales.
    """
    config = replace(config, scheme="int3", budget=None)
    by_channel = config
    yield config
    if config.group_size is not None:  # groups
        by_channel = _plain(config, "granularity", "group_size")
        yield replace(by_channel, scheme="int4")
        yield replace(config, scheme="int4", group_size=2 * config.group_size)
    yield replace(config, scheme="int4")
    yield replace(by_channel, scheme="int8")
    none = _plain(by_channel, "granularity", "symmetric", "rounding", "scales")
    yield replace(none, scheme="float16")


def _plain(config: "Quantize", *fields: str) -> "Quantize":
    defaults: dict[str, Any] = {field: getattr(type(config), field) for field in fields}
    return replace(config, **defaults)


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


def _harm(
    model: Model,
    plans: Sequence[WeightPlan],
    rows: Rows,
    noise: np.ndarray,
    data: Dataset,
) -> np.ndarray:
    """Return the change of the outputs for each layer and candidate.

    Only int3 and int4 are measured. Other candidates follow from the noise power in the
    weights. Between int3 and int4, an exponent is fitted to both. Below int4, harm is
    proportional to the noise power.
    """
    ends = 0, _int4(plans)

    def changed(number: int) -> AbstractContextManager[None]:
        row, end = divmod(number, len(ends))
        return _rounded(plans, rows, {row: ends[end]})

    layers = [plans[0][row[0]][0].owner for row in rows for _ in ends]
    end_harm = _seen(sensitivities(model, layers, changed, data)).reshape(-1, len(ends))
    most, least = noise[:, ends[0]], noise[:, ends[1]]
    # Lossless int4 contains no information about other candidates.
    is_lossy = least > _LEAST_NOISE * most
    own = np.maximum(np.where(is_lossy, least, most), _TINY)
    tells = (
        is_lossy
        & (end_harm[:, 1] > 0)
        & (end_harm[:, 0] > end_harm[:, 1])
        & (most > least)
    )
    rise = np.log(
        np.where(tells, end_harm[:, 0] / np.maximum(end_harm[:, 1], _TINY), np.e)
    )
    power = rise / np.log(np.where(tells, most / own, np.e))
    share = noise / own[:, None]
    harm = np.where(is_lossy, end_harm[:, 1], end_harm[:, 0])[
        :, None
    ] * share ** np.where(share > 1, np.clip(power, 0.5, 2)[:, None], 1)
    harm[:, ends] = end_harm
    return _seen(harm)


def _int4(plans: Sequence[WeightPlan]) -> int:
    return max(n for n, plan in enumerate(plans) if _name(plan) == "int4")


def _sums(harm: np.ndarray, choices: Choices) -> np.ndarray:
    every = np.arange(len(harm))
    return np.array([harm[every, choice].sum() for choice in choices])


def _lost(
    model: Model,
    plans: Sequence[WeightPlan],
    rows: Rows,
    choices: Choices,
    data: Dataset,
) -> np.ndarray:

    def changed(number: int) -> AbstractContextManager[None]:
        return _rounded(plans, rows, dict(enumerate(choices[number])))

    return _seen(sensitivities(model, [model] * len(choices), changed, data))


def _rounded(
    plans: Sequence[WeightPlan], rows: Rows, options: Mapping[int, int]
) -> AbstractContextManager[None]:
    places = ((plans[option][i] for i in rows[n]) for n, option in options.items())
    new_values = _as_stored(chain.from_iterable(places))
    return _assigned((weight.variable, new) for weight, new in new_values)


def _as_stored(plan: Iterable[Any]) -> Iterator[tuple[Any, np.ndarray | None]]:
    for weight, place in plan:
        new = None
        if isinstance(place, WeightPlace):
            values = to_numpy(weight.variable)
            new = place.coding.decoded(place.encode(values), values.shape)
        yield weight, new


@contextmanager
def _assigned(pairs: Iterable[tuple[Any, np.ndarray | None]]) -> Iterator[None]:
    before = list[tuple[Any, np.ndarray]]()
    try:
        for variable, new in pairs:
            if new is not None:
                before.append((variable, to_numpy(variable)))
                variable.assign(new)
        yield
    finally:
        for variable, values in before:
            variable.assign(values)


def _seen(harm: np.ndarray) -> np.ndarray:
    return np.where(harm < _LEAST, 0.0, harm)


def _choices(sizes: np.ndarray, room: float, harm: np.ndarray) -> Choices:
    """Return unique choices within the budget, as candidate indices per layer."""
    rows, count = sizes.shape
    choices = [[option] * rows for option in range(count)]
    choices = [each for each in choices if sizes[:, each[0]].sum() <= room]
    for first in range(count):
        if sizes[:, first:].min(1).sum() <= room:
            best = best_options(sizes[:, first:], harm[:, first:], room)
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


def _noise(changes: list[WeightChange], row: Sequence[int]) -> float:
    ratios = [changes[index].sqnr_db for index in row]
    return sum(10 ** (-ratio / 10) for ratio in ratios if ratio is not None)


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
