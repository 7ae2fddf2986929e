"""Structured pruning of a model: labels, selection, rebuild and verification.

Models built from constructor arguments lose heads and hidden units. The new model has
the same class, smaller width arguments and slices of the weights. The layout of the
units is found by trial. With the right one, the smaller model computes the same as the
original model with these units set to zero.
"""

import math
import warnings
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import keras
import numpy as np

from kerasmem.compression.account import account
from kerasmem.compression.channels import PruneChannels
from kerasmem.compression.channels.choose import kept_channels
from kerasmem.compression.channels.ranking import Ranking, Round
from kerasmem.compression.channels.scores import weight_scores
from kerasmem.compression.channels.units import Layouts, Units, units_of
from kerasmem.compression.channels.verify import compared, difference
from kerasmem.compression.channels.widths import LAYOUTS, Layout
from kerasmem.compression.technique import Context
from kerasmem.compression.working import fine_tune
from kerasmem.errors import KerasMemWarning, ModelError
from kerasmem.graph.arguments import Pair, made_with
from kerasmem.graph.channels import (
    ChannelSubset,
    Groups,
    LabelledModel,
    label_channels,
)
from kerasmem.graph.channels.groups import find_groups
from kerasmem.graph.channels.labels import CHANNEL, IN, OUT
from kerasmem.graph.channels.narrow import Narrow
from kerasmem.graph.clone import compile_as
from kerasmem.graph.layers import Weight, check_built, listed_graph, own_graph, weights
from kerasmem.graph.rebuild import Rebuild, variable_pairs
from kerasmem.graph.values import nbytes, to_numpy
from kerasmem.records import WeightChange
from kerasmem.types import Dataset, Model

EXACT = 1e-5
"""Largest relative difference of outputs under the right layout."""


class Trial:
    """A model with fewer units, under a layout to be tested.

    Attributes:
        model: The smaller model.
        pairs: Weights of the original model and of the smaller model, in pairs.
        subset: Remaining weight entries.
    """

    def __init__(self, original: Model, units: Units, removed: np.ndarray) -> None:
        self._original, self._units = original, units
        self.subset = units.subset(removed, {})
        changes = units.changes(removed)
        self.model, self.pairs = made_with(original, changes, self._values)

    def fill(self, layouts: Layouts) -> None:
        """Sets the weights for other layouts. Building another model takes longer."""
        self.subset = self._units.subset(self.subset.removed, layouts)
        for weight, value in self._values(self.pairs):
            weight.assign(value)

    def error(self, data: Dataset) -> float:
        """Returns the largest relative output difference from the silenced original."""
        error, *_ = compared(self._original, self.model, self.subset, data)
        if math.isnan(error):
            raise ModelError(
                f"Cannot check whether the model {self._original.name!r} can lose "
                "heads and hidden units, because it does not run on random numbers. "
                "Next: pass samples as data=."
            )
        return error

    def _values(self, pairs: Sequence[Pair]) -> Iterator[tuple[Any, np.ndarray]]:
        for old, new in pairs:
            yield new, self.subset.gather(old, to_numpy(old))


def remove_units(
    model: Model, units: Units, removed: np.ndarray, data: Dataset
) -> Trial:
    """Builds a model without some units. The original model is not changed.

    Keeps units whose removal changes the output of other units. The reason is added to
    `units.groups.reasons`. Without data, the check uses random numbers.
    """
    trial = Trial(model, units, removed)
    if not removed.size or trial.error(data) <= EXACT:
        return trial
    layouts: dict[int, Layout] = {}
    for number in range(len(units.widths)):
        own = np.intersect1d(units.members(number), removed)
        layout = _layout(model, units, number, own, data) if own.size else None
        if layout is not None:
            layouts[number] = layout
    going = np.isin(removed, np.hstack([[], *map(units.members, layouts)]))
    if not going.all():
        trial = Trial(model, units, removed[going])
    trial.fill(layouts)
    return trial


def _layout(
    model: Model, units: Units, number: int, removed: np.ndarray, data: Dataset
) -> Layout | None:
    width, trial = units.widths[number], Trial(model, units, removed)
    errors: dict[Layout, float] = {}
    for layout in LAYOUTS:
        if layout.fits(width):
            trial.fill({number: layout})
            errors[layout] = trial.error(data)
            if errors[layout] <= EXACT:
                return layout
    best = min(errors, key=lambda layout: errors[layout])
    trial.fill({number: best})
    try:
        difference(model, trial.model, trial.subset, data)
    except ModelError:
        names = ", ".join(place[-1] for place in width.values)
        why = (
            f"{names}: removing a unit changes other units by {errors[best]:.1e} of "
            "the largest output"
        )
        units.groups.reasons.update(dict.fromkeys(removed.tolist(), why))
        return None
    return best


def with_graph(model: Model) -> Any:
    """Returns the model, or a Functional model traced from its `call`."""
    check_built(model)
    if listed_graph(model) is not None:
        return model
    graph = own_graph(model)
    if graph is None:
        functional = _followed(model)
    else:  # a Functional subclass, with a config of constructor arguments only
        functional = keras.Model(graph.input, graph.output, name=model.name)
    if {id(v) for v in functional.variables} != {id(v) for v in model.variables}:
        raise _no_graph(model, "it has weights outside of its layers")
    return functional


def _followed(model: Model) -> Any:
    shape = (model.get_build_config() or {}).get("input_shape")
    if shape is None:
        raise _no_graph(model, "its input shape is unknown")
    try:
        inputs = _inputs(shape, getattr(model, "input_dtype", None) or "float32")
        return keras.Model(inputs, model.call(inputs), name=model.name)
    except Exception as error:
        raise _no_graph(model, str(error)) from error


def _inputs(shape: Any, dtype: str) -> Any:
    if isinstance(shape, dict):
        return {name: _inputs(inner, dtype) for name, inner in shape.items()}
    if any(isinstance(size, list | tuple | dict) for size in shape):
        return [_inputs(inner, dtype) for inner in shape]
    return keras.Input(batch_shape=(None, *shape[1:]), dtype=dtype)


def _no_graph(model: Model, why: str) -> ModelError:
    return ModelError(
        f"The `call` of the subclassed model {model.name!r} cannot be traced. "
        "Expected: a `call` made only of layers and keras.ops. "
        f"Received: {' '.join(why.split())[:200]}."
    )


@dataclass(frozen=True, eq=False)
class Pruned:
    """A model with fewer channels.

    Args:
        model: The smaller model, compiled as the original.
        changes: One change per weight of the original model.
        error: Largest output difference from the original model with the same channels
            silenced, relative to the largest output; None if not measured.
        unknown: Unsupported operations by name, with the reason. Adjacent channels are
            kept.
    """

    model: Any
    changes: list[WeightChange]
    error: float | None
    unknown: dict[str, str]


def prune_in_rounds(
    model: Model, config: PruneChannels, context: Context
) -> tuple[Any, list[WeightChange]]:
    """Removes channels in rounds. Returns the new model and all changes.

    Fine-tunes after each round except the last if the context has epochs.
    """
    sizes: dict[int, int] = {}
    changes: list[WeightChange] = []
    for number in range(1, config.rounds + 1):
        which = Round(number, config.rounds, sizes)
        result = prune_channels(model, config, context.data, which)
        model = result.model
        changes += result.changes
        if number < config.rounds and context.epochs:
            fine_tune(model, config, context)
    return model, changes


def prune_channels(
    model: Model,
    config: PruneChannels,
    data: Dataset = None,
    this_round: Round | None = None,
) -> Pruned:
    """Builds a model with fewer channels. The original model is not changed.

    Args:
        model: A built model.
        config: Pruning configuration.
        data: Samples for the check, and for criteria that need data. Defaults to random
            numbers.
        this_round: Current round. Defaults to a single round.
    """
    this_round = this_round or Round()
    units = units_of(model, config, data)
    graph, labels, groups, scores = _labelled(model, units, config, data)
    paths = {id(weight.variable): weight.path for weight in weights(graph)}
    ranking = Ranking(paths, labels, groups, scores, config, this_round)
    subset = kept_channels(graph, labels, ranking, config, this_round)
    if getattr(model, "preprocessor", None) is not None:
        data = None  # inputs of the preprocessor, such as strings
    smaller, pairs, subset = _written(graph, labels, units, subset, data)
    verify = config.verify or units is not None
    error = difference(graph, smaller, subset, data) if verify else None
    compile_as(smaller, model)
    changes = _changes(graph, pairs, labels, groups, subset)
    if _ends_unchanged(this_round, changes) and ranking.is_whole:
        _warn_that_whole(config, ranking.largest, next(iter(subset.notes.values()), ""))
    return Pruned(smaller, changes, error, labels.unknown)


def _labelled(
    model: Model, units: Units | None, config: PruneChannels, data: Dataset
) -> tuple[Any, LabelledModel, Groups, np.ndarray]:
    if units is not None:
        return model, units.labelled, units.groups, units.scores
    graph = with_graph(model)
    labels = label_channels(graph)
    groups = find_groups(labels.labels)
    if not groups.members:
        raise _no_channels(graph, labels, groups)
    scores = weight_scores(model, labels.labels.uses, groups.classes, config, data)
    return graph, labels, groups, scores


def _written(
    graph: Any, labelled: LabelledModel, units: Units | None, subset: Any, data: Dataset
) -> tuple[Any, list[tuple[Any, Any]], ChannelSubset]:
    if units is None:
        rebuild = Rebuild(Narrow(labelled, subset))
        smaller = rebuild.run(graph)
        return smaller, variable_pairs(rebuild.pairs), subset
    trial = remove_units(graph, units, subset.removed, data)
    if subset.removed.size and not trial.subset.removed.size:
        raise _no_channels(graph, labelled, units.groups)
    return trial.model, trial.pairs, trial.subset


def _ends_unchanged(this_round: Round, changes: list[WeightChange]) -> bool:
    last = this_round.number == this_round.count
    return last and not any(change.changed for change in changes)


def _warn_that_whole(config: PruneChannels, largest: int, note: str = "") -> None:
    largest_ratio = max([config.ratio, *(ratio for _, ratio in config.ratios)])
    if largest_ratio:
        why = note or (
            "the ratio rounds to 0 channels in every group, or tied groups must keep "
            f"their channels. The largest group has {largest} channels"
        )
        warnings.warn(
            f"PruneChannels removed nothing: {why}. Next: increase the ratio, use "
            "of='parameters', or reduce ignore, min_channels or round_to. Received: "
            f"ratio={config.ratio!r}.",
            KerasMemWarning,
            stacklevel=2,
        )


def _no_channels(model: Model, labelled: LabelledModel, groups: Groups) -> ModelError:
    return ModelError(
        f"The model {model.name!r} has no channels that could be removed. "
        f"{_first_reasons(model, labelled, groups)}"
    )


def _first_reasons(model: Model, labelled: LabelledModel, groups: Groups) -> str:
    paths = {id(weight.variable): weight.path for weight in weights(model)}
    uses = labelled.labels.uses
    makers = [use for use in uses if use.role == OUT]
    maker_ids = {id(use.variable) for use in makers}
    whole_layers = [
        use
        for use in uses
        if use.role == CHANNEL and len(use.variable.shape) > 1
        if id(use.variable) not in maker_ids
    ]
    reasons: dict[str, str] = {}
    for use in (*whole_layers, *makers):
        if why := _reason(use.labels, groups):
            reasons.setdefault(why, f"{paths[id(use.variable)]}: {why}")
    if makers:
        return f"Received: {'; '.join([*reasons.values()][:3])}."
    whole = Counter(
        type(call.operation).__name__
        for call in labelled.calls.values()
        if call.operation.name in labelled.unknown
    )
    if not whole:
        return "Received: no layer with channels."
    kinds = ", ".join(f"{name} ({count})" for name, count in whole.items())
    return (
        "Expected: layers with known channels, such as Dense and Conv2D. Received: "
        f"layers of other classes: {kinds}. Next: remove channels before km.Quantize "
        "and km.Factorize, or remove weights of other layers with km.Prune."
    )


def _reason(labels: np.ndarray, groups: Groups) -> str | None:
    return _first_of(groups.reasons, groups.classes[labels])


def _first_of(notes: Mapping[int, str], classes: np.ndarray) -> str | None:
    return next((notes[n] for n in np.unique(classes).tolist() if n in notes), None)


def _changes(
    model: Model,
    pairs: list[tuple[Any, Any]],
    labelled: LabelledModel,
    groups: Groups,
    subset: ChannelSubset,
) -> list[WeightChange]:
    new = {id(before): after for before, after in pairs}
    why: dict[int, str] = {}
    notes: dict[int, str] = {}
    # Reasons for the output channels of a weight take precedence over its inputs.
    for use in sorted(labelled.labels.uses, key=lambda use: use.role == IN):
        reason = _reason(use.labels, groups)
        if reason:
            why.setdefault(id(use.variable), reason)
        note = _first_of(subset.notes, groups.classes[use.labels])
        if note and use.role != IN:
            notes.setdefault(id(use.variable), note)
    return [_change(w, new[id(w.variable)], why, notes) for w in weights(model)]


def _change(
    weight: Weight, after: Any, why: dict[int, str], notes: dict[int, str]
) -> WeightChange:
    old, new = tuple(weight.variable.shape), tuple(after.shape)
    note = notes.get(id(weight.variable))
    if old != new:
        detail = "; ".join([f"{old} to {new}", *([note] if note else [])])
    else:
        detail = note or why.get(id(weight.variable), "has no channels to remove")
    return account(
        weight,
        "prune_channels",
        detail,
        changed=old != new,
        after_bytes=nbytes(after),
    )
