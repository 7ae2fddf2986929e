"""Labelling a model, choosing channels, making the smaller model, checking it."""

import warnings
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from kerasmem.compression.account import account
from kerasmem.compression.channels.choose import kept_channels
from kerasmem.compression.channels.inline import with_graph
from kerasmem.compression.channels.ranking import Ranking
from kerasmem.compression.channels.rounds import Round
from kerasmem.compression.channels.scores import class_scores
from kerasmem.compression.channels.slots import take_along
from kerasmem.compression.channels.verify import difference
from kerasmem.errors import KerasMemWarning, ModelError
from kerasmem.graph.channels import Groups, Kept, LabelledModel, label_channels
from kerasmem.graph.channels.groups import find_groups
from kerasmem.graph.channels.labels import IN, OUT
from kerasmem.graph.channels.narrow import Narrow
from kerasmem.graph.layers import Weight, weights
from kerasmem.graph.rebuild import Rebuild, variable_pairs
from kerasmem.graph.values import nbytes
from kerasmem.records import WeightChange

if TYPE_CHECKING:
    from kerasmem.compression.channels.config import PruneChannels


@dataclass(frozen=True, eq=False)
class Pruned:
    """A model with fewer channels.

    Args:
        model: the smaller model, compiled as the original was.
        changes: every weight of the original: changed, or left alone and why.
        error: largest difference from the original with the same channels silenced,
            relative to its largest output; None if that was not measured.
        unknown: operations that nothing is known of, by name, with why: everything
            next to them stays as it is.
    """

    model: Any
    changes: list[WeightChange]
    error: float | None
    unknown: dict[str, str]


def prune_channels(
    model: Any,
    choice: "PruneChannels",
    data: Any = None,
    turn: Round | None = None,
) -> Pruned:
    """Return a model with fewer channels; the one handed in is not touched.

    Args:
        model: a built model.
        choice: which channels go.
        data: samples to check the result with, None for random numbers; some choices
            look at samples, or at labels too.
        turn: the round that this is, of several.

    Raises:
        ModelError: if nothing can be removed, or not as much as is asked for, or the
            check fails.
        ConfigError: if a pattern matches no weight, or data is missing.
    """
    graph = with_graph(model)
    found = label_channels(graph)
    groups = find_groups(found.labels)
    paths = {id(weight.variable): weight.path for weight in weights(graph)}
    if not groups.members:
        raise ModelError(
            f"The model {model.name!r} has no channels that could be removed. "
            f"{_first_reasons(paths, found, groups)}"
        )
    turn = turn or Round()
    scores = class_scores((model, graph), found, groups.classes, choice, data)
    ranking = Ranking(paths, found, groups, scores, choice, turn)
    kept = kept_channels(graph, found, ranking, choice, turn, data)
    rebuild = Rebuild(Narrow(found, kept))
    smaller = rebuild.run(graph)
    error = difference(graph, smaller, kept, data) if choice.verify else None
    pairs = variable_pairs(rebuild.pairs)
    take_along(model, smaller, pairs, kept)
    changes = _changes(graph, pairs, found, groups, kept)
    if turn.number == turn.count and not any(change.changed for change in changes):
        _warn_if_whole(ranking, choice, kept)
    return Pruned(smaller, changes, error, found.unknown)


def _warn_if_whole(ranking: Ranking, choice: "PruneChannels", kept: Kept) -> None:
    """Warn if channels were to go and none has gone, in no round."""
    asked = max([choice.ratio, *(ratio for _, ratio in choice.ratios)])
    if asked and ranking.is_whole:
        why = next(iter(kept.notes.values()), None) or (
            "its share of channels rounds to none in every group of channels that go "
            f"together, of which the largest has {ranking.largest}, or others that "
            "must lose as many stay"
        )
        warnings.warn(
            f"PruneChannels removed nothing: {why}. Next: a larger ratio, "
            "of='parameters', or less of ignore, min_channels and round_to. Received: "
            f"ratio={choice.ratio!r}.",
            KerasMemWarning,
            stacklevel=2,
        )


def _first_reasons(paths: dict[int, str], found: LabelledModel, groups: Groups) -> str:
    reasons = [
        f"{paths[id(use.variable)]}: {why}"
        for use in found.labels.uses
        if use.role == OUT and (why := _reason(use.labels, groups))
    ]
    if not reasons:
        return "Received: no layer with channels of floats; quantized ones have none."
    return f"Received: {'; '.join(reasons[:3])}."


def _reason(labels: np.ndarray, groups: Groups) -> str | None:
    return _first_of(groups.reasons, groups.classes[labels])


def _first_of(told: Mapping[int, str], classes: np.ndarray) -> str | None:
    """Return what is told of the first of some classes that anything is told of."""
    return next((told[n] for n in np.unique(classes).tolist() if n in told), None)


def _changes(
    model: Any,
    pairs: list[tuple[Any, Any]],
    found: LabelledModel,
    groups: Groups,
    kept: Kept,
) -> list[WeightChange]:
    new = {id(before): after for before, after in pairs}
    why: dict[int, str] = {}
    notes: dict[int, str] = {}
    # What a weight makes comes before what it consumes.
    for use in sorted(found.labels.uses, key=lambda use: use.role == IN):
        reason = _reason(use.labels, groups)
        if reason:
            why.setdefault(id(use.variable), reason)
        note = _first_of(kept.notes, groups.classes[use.labels])
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
        detail = note or why.get(id(weight.variable), "has no channels that go")
    return account(
        weight,
        "prune_channels",
        detail,
        changed=old != new,
        after_bytes=nbytes(after),
    )
