"""Finds heads and hidden units of models built from constructor arguments.

A backbone of KerasHub, or a task around one, has its own layer classes, so its calls
cannot be analyzed. Its config contains the widths. To find the weight axes of a width,
a model with twice the width is built symbolically: these axes are twice as long. An
entry along such an axis belongs to a unit, such as a head. A few layouts are possible.
With the right one, the smaller model computes the same as the original model with these
units set to zero.

Sources: Michel, Levy and Neubig, "Are Sixteen Heads Really Better than One?", 2019;
Ainslie et al., "GQA: Training Generalized Multi-Query Transformer Models from
Multi-Head Checkpoints", 2023 (query heads that share a key and a value).
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
    """Axis of a weight along which units lie.

    `layers` contains the `id` of each layer around the weight, outermost first. `block`
    is the index of the repeated block in `layers`.
    """

    variable: Any
    axis: int
    layers: tuple[int, ...]
    block: int

    @property
    def size(self) -> int:
        """Length of the axis."""
        return self.variable.shape[self.axis]


@dataclass(frozen=True, eq=False)
class Width:
    """Config arguments that set the number of units of each block.

    Args:
        values: Arguments and their current values.
        units: Number of units per block that can be removed one by one.
        sections: Number of equal runs of units that each lose the same number, such as
            the query heads that share a key and a value.
        explicit: Other arguments that must then be set explicitly.
        axes: Weight axes along which the units lie.
    """

    values: Mapping[Place, int]
    units: int
    sections: int
    explicit: Mapping[Place, int]
    axes: tuple[Axis, ...]

    def changes(self, remaining: int) -> dict[Place, int]:
        """Returns the arguments of a model with `remaining` units per block."""
        now = {place: n * remaining // self.units for place, n in self.values.items()}
        return {**self.explicit, **now}


@dataclass(frozen=True)
class Layout:
    """Arrangement of units along an axis, and the scope of one choice of units.

    Args:
        parts: Number of runs along the axis that each contain every unit, such as two
            for the concatenated products of a gate.
        reach: Weights that lose the same units: those in one `"layer"`, one `"block"`
            or the whole `"model"`, as with a shared table of positions.
    """

    parts: int
    reach: str

    def fits(self, width: Width) -> bool:
        """Returns whether the layout is possible for a width."""
        several = [axis.size // width.units for axis in width.axes]
        return self.parts == 1 or any(n % self.parts == 0 for n in several)

    def key(self, axis: Axis) -> int:
        """Returns a key that is equal for axes that lose the same units."""
        of = {"model": 0, "block": axis.block, "layer": len(axis.layers) - 2}
        return axis.layers[max(of[self.reach], 0)]


LAYOUTS = tuple(
    itertools.starmap(Layout, itertools.product((1, 2, 3), ("layer", "block", "model")))
)
"""Layouts from common to rare, with the finest choice of units first."""


Widths = tuple[list[list[Width]], dict[int, str]]
"""Alternative widths, and by `id` the reasons why other weights stay unchanged."""


def find_widths(model: Model) -> Widths:
    """Finds the widths in a model's config.

    Returns a list with the alternatives of each width, in order of preference. Also
    returns a dict from the `id` of a weight to the reason why it stays unchanged. Both
    are empty if the config lists the layers. Raises `ModelError` for LoRA and quantized
    weights.
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
                f"The model {model.name!r} has quantized weights, so heads and hidden "
                "units cannot be ranked. Next: remove them before km.Quantize, or "
                f"call km.dequantize. Received: {axis.variable.path!r}."
            )
    return widths, reasons


Around = tuple[tuple[int, ...], int]
"""`id` of each layer around a weight, outermost first, and the index of its block."""

Candidate = tuple[dict[Place, int], dict[Place, int], int]
"""Arguments of one width, other arguments to set explicitly, and the sections."""


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
                f"{next(iter(values))[-1]} is not an independent width: at twice the "
                f"value, {old.path} has the shape {after} instead of {before}"
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
    """Returns the layers around every weight, and the index of its block.

    The block is the first of several similar layers, or the first layer that is not a
    model.
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
