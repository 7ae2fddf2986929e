"""Recurrent layers, Bidirectional and TimeDistributed."""

from typing import Any

import keras
import numpy as np

from kerasmem.graph.channels.families.elementwise import activated
from kerasmem.graph.channels.labelled_calls import (
    Addition,
    ChannelSubset,
    Family,
    LabelledCall,
)
from kerasmem.graph.channels.labels import (
    CHANNEL,
    IN,
    OUT,
    LabelledTensor,
    Labels,
    axis_of,
)
from kerasmem.graph.layer_table import entry_of
from kerasmem.types import Layer


def recurrent(call: LabelledCall) -> list[np.ndarray]:
    """Labels a recurrent layer. Outputs and states have one channel per unit."""
    layer = call.operation
    if layer.stateful:
        return call.frozen(f"{layer.name!r} is stateful")
    units = _units(call.labels, layer, call.x)
    for state in _states(call):
        call.labels.unite(units, call.labels.only_along(state, -1))
    return [axis_of(units, -1, len(shape)) for shape in call.shapes]


def _states(call: LabelledCall) -> list[LabelledTensor]:
    states = call.args[1] if len(call.args) > 1 else call.kwargs.get("initial_state")
    return [x for x in keras.tree.flatten(states) if isinstance(x, LabelledTensor)]


def _units(labels: Labels, layer: Layer, x: LabelledTensor) -> np.ndarray:
    cell = layer.cell
    gates = cell.kernel.shape[1] // cell.units
    labels.weigh_axis(cell.kernel, IN, 0, labels.only_along(x, -1))
    units = labels.from_weight(cell.kernel, cell.units)
    for name in ("activation", "recurrent_activation"):
        function = getattr(cell, name, None)
        activated(labels, units.reshape(1, -1), function, layer.name)
    every_gate = np.tile(units, gates)
    labels.weigh_axis(cell.kernel, OUT, 1, every_gate)
    labels.weigh_axis(cell.recurrent_kernel, IN, 0, units)
    labels.weigh_axis(cell.recurrent_kernel, OUT, 1, every_gate)
    if cell.use_bias:
        labels.weigh_axis(cell.bias, CHANNEL, len(cell.bias.shape) - 1, every_gate)
    return units


def recurrent_config(call: LabelledCall, subset: ChannelSubset) -> dict[str, Any]:
    """Returns the new number of units."""
    return {"units": _unit_count(call.operation, subset)}


def _unit_count(layer: Layer, subset: ChannelSubset) -> int:
    return subset.weight_shape(layer.cell.recurrent_kernel)[0]


def both_ways(call: LabelledCall) -> list[np.ndarray]:
    """Labels Bidirectional, whose two layers have separate units."""
    layer = call.operation
    parts = (layer.forward_layer, layer.backward_layer)
    if any(getattr(part, "stateful", False) for part in parts):
        return call.frozen(f"{layer.name!r} is stateful")
    plain = all(map(_is_recurrent, parts))
    if not plain or _states(call) or layer.return_state:
        return call.frozen(f"{layer.name!r} wraps an unsupported layer")
    ways = [_units(call.labels, part, call.x) for part in parts]
    # Keras creates both layers from one config.
    call.labels.tie(*ways)
    if layer.merge_mode is None:
        return [axis_of(way, -1, call.rank) for way in ways]
    if layer.merge_mode == "concat":
        return [axis_of(np.concatenate(ways), -1, call.rank)]
    call.labels.unite(*ways)
    return [axis_of(ways[0], -1, call.rank)]


def _is_recurrent(layer: Layer) -> bool:
    return entry_of(layer).channels == "recurrent"


def both_ways_config(call: LabelledCall, subset: ChannelSubset) -> dict[str, Any]:
    """Returns the configs of both layers with the new numbers of units."""
    layer = call.operation
    config = layer.get_config()
    for name, part in (
        ("layer", layer.forward_layer),
        ("backward_layer", layer.backward_layer),
    ):
        if _is_recurrent(part):
            config[name]["config"]["units"] = _unit_count(part, subset)
            config[name].pop("build_config", None)
    return {name: config[name] for name in ("layer", "backward_layer")}


def at_every_step(inner: dict[str, Family]) -> Family:
    """Returns the TimeDistributed family for the layer families in `inner`."""

    def family(call: LabelledCall) -> Family | None:
        return inner.get(entry_of(call.operation.layer).channels or "")

    def label(call: LabelledCall) -> list[np.ndarray]:
        inner_family = family(call)
        if inner_family is None:
            why = f"{call.operation.name!r} wraps an unsupported layer"
            return call.frozen(why)
        return [array[:, None] for array in inner_family.label(_step(call))]

    def config(call: LabelledCall, subset: ChannelSubset) -> dict[str, Any]:
        inner_family = family(call)
        if inner_family is None:
            return {}
        inner_config = keras.saving.serialize_keras_object(call.operation.layer)
        inner_config.pop("build_config", None)
        inner_config["config"].update(inner_family.config(_step(call), subset))
        return {"layer": inner_config}

    def additions(call: LabelledCall, subset: ChannelSubset) -> list[Addition]:
        inner_family = family(call)
        return (
            [] if inner_family is None else inner_family.additions(_step(call), subset)
        )

    return Family(label, config, additions=additions)


def _step(call: LabelledCall) -> LabelledCall:
    one = call.labels.join(call.x.array, [1])
    x = _first_step(LabelledTensor(one, call.x.shape))
    shapes = tuple((s[0], *s[2:]) for s in call.shapes)
    outputs = [_first_step(y) for y in call.outputs]
    return LabelledCall(call.operation.layer, (x,), {}, shapes, call.labels, outputs)


def _first_step(x: LabelledTensor) -> LabelledTensor:
    return LabelledTensor(x.array[:, 0], (x.shape[0], *x.shape[2:]))
