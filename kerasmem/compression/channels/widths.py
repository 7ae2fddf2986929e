"""Heads and hidden units of a model that its own class builds, by its arguments.

Such a model, a backbone of KerasHub or a task around one, is opaque: its blocks have
classes of their own. Its config says how wide they are. Which axes of which weights an
argument is the width of shows a model with twice as much of it, which is made to be
looked at: these are the axes that are twice as long. An entry along such an axis
belongs to a unit, such as a head; how, is one of few layouts. The right one is the one
under which the smaller model computes what the original does without these units.

Sources: Michel, Levy and Neubig, "Are Sixteen Heads Really Better than One?", 2019;
Ainslie et al., "GQA: Training Generalized Multi-Query Transformer Models from
Multi-Head Checkpoints", 2023 (the groups that share a key and a value).
"""

import itertools
import math
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import keras

from kerasmem.errors import ModelError
from kerasmem.graph.arguments import (
    Place,
    arguments,
    is_made_of_arguments,
    layer_pairs,
    shapes_with,
    siblings,
    weight_pairs,
)
from kerasmem.graph.layers import own_graph, own_variables
from kerasmem.types import Layer, Model

_UNITS = re.compile(r"(.*_)?(intermediate|mlp|ffn|feedforward)_(dim|size)")
_HEADS = re.compile(r"(?P<of>.*?)num_(query_|attention_)?heads")
_SHARED_HEADS = "num_key_value_heads"
_HEAD_DIMS = ("head_dim", "key_value_dim")
_HIDDEN_DIM = "hidden_dim"


@dataclass(frozen=True, eq=False)
class Axis:
    """An axis of a weight along which units lie.

    Args:
        variable: the weight.
        axis: which of its axes.
        layers: the layers around the weight, outermost first, by `id`, the one that
            owns it last.
        block: which of them is one of the blocks that repeat each other.
    """

    variable: Any
    axis: int
    layers: tuple[int, ...]
    block: int

    @property
    def size(self) -> int:
        """Its length."""
        return self.variable.shape[self.axis]


@dataclass(frozen=True, eq=False)
class Width:
    """Arguments of a config that say how many units each block has.

    Args:
        values: the arguments, by their place, as they are.
        units: how many units of a block can go one by one.
        sections: into how many equal runs of units they fall, each of which loses
            as many: query heads that share a key and a value.
        explicit: other arguments that have to be given then.
        axes: where the units lie.
    """

    values: Mapping[Place, int]
    units: int
    sections: int
    explicit: Mapping[Place, int]
    axes: tuple[Axis, ...]

    def changes(self, remaining: int) -> dict[Place, int]:
        """Return the arguments of a model with so many units in each block."""
        now = {place: n * remaining // self.units for place, n in self.values.items()}
        return {**self.explicit, **now}


@dataclass(frozen=True)
class Layout:
    """How units lie along an axis, and what loses the same ones.

    Args:
        parts: number of runs along the axis, in each of which every unit occurs: two
            where the products of a gate lie behind each other.
        reach: what loses the same units: all that is in one `"layer"`, one `"block"`,
            or the whole `"model"`, as where all blocks share a table of positions.
    """

    parts: int
    reach: str

    def fits(self, width: Width) -> bool:
        """Return whether a width can lie like this: else it is another layout."""
        several = [axis.size // width.units for axis in width.axes]
        return self.parts == 1 or any(n % self.parts == 0 for n in several)

    def key(self, axis: Axis) -> int:
        """Return what is equal for axes that lose the same units."""
        of = {"model": 0, "block": axis.block, "layer": len(axis.layers) - 2}
        return axis.layers[max(of[self.reach], 0)]


LAYOUTS = tuple(
    itertools.starmap(Layout, itertools.product((1, 2, 3), ("layer", "block", "model")))
)
"""From the usual to the rare, the finest choice of units first."""


Widths = tuple[list[list[Width]], dict[int, str]]
"""Widths, of each the ways to lose units, and by `id` why other weights stay."""


def find_widths(model: Model) -> Widths:
    """Return the widths in a model's config, and why others are none.

    Args:
        model: a built model.

    Returns:
        Widths, of each the ways to lose units: the first one that can is meant. And by
        the `id` of a weight why what an argument says of it stays. Both are empty for a
        model whose config lists its layers.

    Raises:
        ModelError: if the config does not tell all of the model, as of LoRA, or its
            weights are codes.
    """
    widths: list[list[Width]] = []
    reasons: dict[int, str] = {}
    if not is_made_of_arguments(model):
        return widths, reasons
    places = _places(model)
    candidates = list(_candidates(arguments(model)))
    for ways in candidates:
        candidate_widths = [_width(model, places, way, reasons) for way in ways]
        if any(candidate_widths):
            widths.append([width for width in candidate_widths if width is not None])
    if candidates and not widths:
        weight_pairs(layer_pairs(model, shapes_with(model, {})))
    for axis in (axis for ways in widths for width in ways for axis in width.axes):
        if not keras.backend.is_float_dtype(axis.variable.dtype):
            raise ModelError(
                f"The model {model.name!r} has codes in place of numbers, which do not "
                "tell which heads and hidden units matter. Next: remove them before "
                f"km.Quantize, or km.dequantize it. Received: {axis.variable.path!r} "
                f"of {axis.variable.dtype}."
            )
    return widths, reasons


Around = tuple[tuple[int, ...], int]
"""Layers around a weight, outermost first, by `id`, and the place of its block."""

Candidate = tuple[dict[Place, int], dict[Place, int], int]
"""Arguments of one width, others that have to be given then, and its sections."""


def _candidates(config: Mapping[Place, Any]) -> Iterator[list[Candidate]]:
    for place, value in config.items():
        if type(value) is not int or value < 1:
            continue
        *around, name = place
        if _UNITS.fullmatch(name):
            yield [({place: value}, {}, 1)]
        elif match := _HEADS.fullmatch(name):

            def other(of: str, a: Sequence[str] = around, m: Any = match) -> Place:
                return (*a, m["of"] + of)

            explicit = {
                dim: config[hidden] // value
                for dim in map(other, _HEAD_DIMS)
                for hidden in (other(_HIDDEN_DIM), (*around, _HIDDEN_DIM))
                if dim in config and config[dim] is None and hidden in config
            }
            key_heads = config.get(other(_SHARED_HEADS))
            alone = ({place: value}, explicit, key_heads or 1)
            if key_heads is None or key_heads == 1:
                yield [alone]
            else:
                together = {place: value, other(_SHARED_HEADS): key_heads}
                yield [(together, explicit, 1), *([alone] if key_heads < value else [])]


def _width(
    model: Model, places: Mapping[int, Around], way: Candidate, reasons: dict[int, str]
) -> Width | None:
    values, explicit, sections = way
    twice = {place: 2 * value for place, value in values.items()}
    try:
        larger = shapes_with(model, {**explicit, **twice})
        pairs = weight_pairs(layer_pairs(model, larger))
    except ModelError:
        return None
    variables_and_axes: list[tuple[Any, int]] = []
    why = None
    for old, new in pairs:
        before, after = tuple(old.shape), tuple(new.shape)
        longer = [n for n, (a, b) in enumerate(zip(before, after)) if a != b]  # noqa: B905
        if len(longer) > 1 or any(2 * before[n] != after[n] for n in longer):
            why = why or (
                f"{next(iter(values))[-1]} is no width by itself: with twice as much, "
                f"{old.path} has the shape {after} in place of {before}"
            )
        variables_and_axes += [(old, axis) for axis in longer]
    if why is not None or not variables_and_axes:
        for variable, _ in variables_and_axes:
            reasons.setdefault(id(variable), str(why))
        return None
    axes = tuple(Axis(old, axis, *places[id(old)]) for old, axis in variables_and_axes)
    units = math.gcd(*(axis.size for axis in axes), *values.values())
    return Width(values, units, sections, explicit, axes)


def _places(model: Model) -> dict[int, Around]:
    """Return of every weight the layers around it, and which of them is its block.

    That is the first one of several alike, or else the first one that is no model.
    """
    by_variable: dict[int, Around] = {}

    def walk(
        layer: Layer, around: tuple[int, ...], block: int | None, first: int
    ) -> None:
        around = (*around, id(layer))
        if own_graph(layer) is not None:
            first = len(around)
        for variable in own_variables(layer):
            at = first if block is None else block
            by_variable.setdefault(id(variable), (around, min(at, len(around) - 1)))
        for same in siblings(layer).values():
            here = len(around) if block is None and len(same) > 1 else block
            for inner in same:
                walk(inner, around, here, first)

    walk(model, (), None, 0)
    return by_variable
