"""Keras layers with quantized weights: any layer, with the same call and name.

Quantizing a layer changes its class. The new class computes the same outputs. It
differs in when it dequantizes its weights and in how it is saved. A layer listed in the
model's config (a block) is saved as `kerasmem>QuantizedLayer`, with the config of the
float layer inside. Loading first restores and builds the float layer, then replaces its
kernels. One mechanism therefore serves every layer with a kernel: Keras layers,
composite layers (attention, Bidirectional, TimeDistributed), custom layers and
subclassed models.
"""

import copy
import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field, replace
from typing import Any

import keras

from kerasmem.backends.variables import exchange_weight, unlocked
from kerasmem.compression.quantize.aware.quantizers import (
    FakeQuantize,
    FakeQuantizedInside,
    inside_form,
)
from kerasmem.compression.quantize.aware.weights import (
    FakeQuantizedVariable,
)
from kerasmem.compression.quantize.coding import Coded, Coding
from kerasmem.compression.quantize.owners import (
    OWNERS,
    QuantizedRecurrent,
    owner_form,
    stand_ins,
)
from kerasmem.compression.quantize.variable import QuantizedVariable, StandIn
from kerasmem.graph.forms import become, layer_before
from kerasmem.graph.full_configs import full_configs
from kerasmem.graph.layers import as_it_was, has_graph, sublayers
from kerasmem.graph.lora import (
    enable_lora_inside,
    lora_inside,
    lora_of,
)
from kerasmem.types import Layer, Variable


@dataclass(frozen=True)
class WeightPlace:
    """Location of a weight in a block, and the format in which the weight is stored.

    Args:
        layer: Index of the owner in `sublayers` of the block.
        attribute: Name of the owner's attribute that holds the weight.
        coding: Storage format.
        block_count: Number of blocks in which the weight is dequantized. Defaults to 1.
        dynamic: Whether the layer's inputs are quantized in every call too.
        activation_scale: Fixed scale of these inputs. If None, computed in every call.
        fake: Whether the weight stays float and is fake-quantized.
        learned: Whether the scales of the fake quantization are trained.
        path: Name of a fake-quantized weight in messages.
        scales: Scales of the codes. If None, computed from the largest entries. Not
            part of the config.
        closely: Whether computed scales minimize the squared error.
        input_scales: Scale of each input, if the coding has input scales. If None,
            ones.
    """

    layer: int
    attribute: str
    coding: Coding
    block_count: int = 1
    dynamic: bool = False
    activation_scale: float | None = None
    fake: bool = False
    learned: bool = False
    path: str = ""
    scales: Any = field(default=None, compare=False)
    closely: bool = field(default=False, compare=False)
    input_scales: Any = field(default=None, compare=False)

    def encode(self, values: Any) -> Coded:
        """Return the NumPy arrays that store a weight."""
        return self.coding.encode(values, self.scales, **self._options)

    def encode_and_compare(self, values: Any) -> tuple[Coded, tuple[float, float]]:
        """Return the result of `Coding.encode_and_compare` for a weight."""
        return self.coding.encode_and_compare(values, self.scales, **self._options)

    @property
    def _options(self) -> dict[str, Any]:
        return {"closely": self.closely, "input_scales": self.input_scales}

    def slices(self, shape: tuple[int, ...]) -> list[tuple[slice, ...]]:
        """Return the slices of a weight that can be encoded independently."""
        axis = None if self.scales is not None else self.coding.free_axis(shape)
        if axis is None or 0 in shape:
            return [()]
        count = min(shape[axis], math.ceil(math.prod(shape) / _SLICE))
        step = math.ceil(shape[axis] / max(count, 1))
        before = (slice(None),) * axis
        starts = range(0, shape[axis], max(step, 1))
        return [(*before, slice(start, start + step)) for start in starts]

    def to_json(self) -> dict[str, Any]:
        """Return the fields as JSON-compatible data."""
        config = {**vars(self), "coding": self.coding.to_json()}
        left_out = {"scales", "closely", "input_scales"}
        left_out |= set() if self.fake else {"fake", "learned", "path"}
        left_out |= {"activation_scale"} if self.activation_scale is None else set()
        return {key: value for key, value in config.items() if key not in left_out}

    @classmethod
    def from_json(cls, config: dict[str, Any]) -> "WeightPlace":
        """Create an instance from the output of `to_json`."""
        return cls(**{**config, "coding": Coding.from_json(config["coding"])})


_SLICE = 1 << 20
"""Number of entries to encode at once."""

Codes = dict[int, Coded] | None
"""Encoded weights by the id of the variable. Each entry is removed when it is used."""

_LOOPS = (keras.layers.RNN, keras.layers.TimeDistributed)
"""Layers that loop over time. TimeDistributed counts only under fake quantization."""


@keras.saving.register_keras_serializable("kerasmem", "QuantizedLayer")
class QuantizedBlock(keras.layers.Layer):
    """A layer of a model's config with quantized weights. See `to_quantized`."""

    def get_config(self) -> dict[str, Any]:
        """Return the config of the float layer and the places of its kernels.

        The config includes LoRA ranks and frozen inner layers, because only LoRA can be
        added after quantization.
        """
        form = copy.deepcopy(self._float_form)
        form["config"].update(lora_of(self))
        quantizer = getattr(self, "inner_quantizer", None)
        within = {} if quantizer is None else {"inside": quantizer.get_config()}
        return {
            **within,
            "name": self.name,
            "trainable": self.trainable,
            "layer": form,
            "weights": [place.to_json() for place in self._places],
            **lora_inside(self),
        }

    @classmethod
    def from_config(cls, config: dict[str, Any]) -> Any:
        """Return the float layer of a config. Building the layer quantizes it."""
        layer = layer_before(config)
        places = [WeightPlace.from_json(place) for place in config["weights"]]
        _become.get()(layer, config["layer"], places)
        if "inside" in config:
            round_inside(layer, FakeQuantize.from_config(config["inside"]))
        if layer.built:
            enable_lora_inside(layer)
        return layer

    def build_from_config(self, config: Any) -> None:
        """Build the float layer, then replace its kernels."""
        super().build_from_config(config)
        _replace_weights(self, sublayers(self))

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Call the layer, then replace kernels that the call has created."""
        outputs = super().__call__(*args, **kwargs)
        if self._missing:
            _replace_weights(self, sublayers(self))
        return outputs


@contextmanager
def read_as(
    become: Callable[[Any, dict[str, Any], list[WeightPlace]], None],
) -> Iterator[None]:
    """Use `become` for the quantized layers of configs that are loaded in the scope.

    `become` receives the unbuilt float layer, its serialized config and the places of
    weights.
    """
    token = _become.set(become)
    try:
        yield
    finally:
        _become.reset(token)


def round_inside(block: Layer, quantizer: FakeQuantize) -> None:
    """Make a `QuantizedBlock` round its inner tensor. See `inside_form`."""
    if isinstance(block, QuantizedBlock):  # `read_as` can leave the layer float
        with unlocked(block):
            block.inner_quantizer = quantizer
        _change_class(block, inside_form(block))


def to_quantized(block: Layer, places: list[WeightPlace], codes: Codes = None) -> None:
    """Replace the weights at `places` of a built layer by quantized weights, in place.

    `block` may be quantized in part. Used entries of `codes` are removed.
    """
    if isinstance(block, QuantizedBlock):
        places = [*block._places, *places]
    _become_block(block, _float_form(block, sublayers(block)), places, codes)


def _float_form(block: Layer, layers: list[Any]) -> dict[str, Any]:
    if isinstance(block, QuantizedBlock):
        return block._float_form
    with full_configs(layers):
        form = keras.saving.serialize_keras_object(block)
    # The config of the quantized layer contains both.
    form.pop("build_config", None)
    form.pop("compile_config", None)
    return form


def _become_block(
    layer: Layer, form: dict[str, Any], places: list[WeightPlace], codes: Codes = None
) -> None:
    # Models inside a factorized block become blocks only in `part_as_block`, because
    # factors must come before codes.
    layers = sublayers(layer)
    parts = [(layers, form, places)]
    if not (form["module"] or "").startswith("kerasmem."):
        parts += _models_inside(layers, places)
    for inner, own_form, own_places in parts:
        part = inner[0]  # the block or a model inside it
        # `setattr` of Keras wraps the values, and raises if the layer is built.
        vars(part).update(_float_form=own_form, _places=own_places, _missing=True)
        # Weight files store an inner model under the name of its class.
        _change_class(part, QuantizedBlock, renamed=not has_graph(part))
        if part.built:
            # `build` is not called again, so replace the weights now.
            _replace_weights(part, inner, codes)


def _models_inside(
    layers: list[Any], places: list[WeightPlace]
) -> list[tuple[list[Any], dict[str, Any], list[WeightPlace]]]:
    """Return layers, config and places of each inner model with a graph."""
    return [
        (inner, _float_form(inner[0], inner), own)
        for inner in map(sublayers, filter(has_graph, layers[1:]))
        if (own := _places_in(inner, layers, places))
    ]


def _places_in(
    inner: list[Any], layers: list[Any], places: list[WeightPlace]
) -> list[WeightPlace]:
    numbers = {id(layer): n for n, layer in enumerate(inner)}
    own = [
        replace(place, layer=numbers[id(layers[place.layer])])
        for place in places
        if place.layer < len(layers) and id(layers[place.layer]) in numbers
    ]
    return sorted(own, key=lambda place: place.layer)


@contextmanager
def part_as_block(block: Layer, part: Any) -> Iterator[None]:
    """Save an inner model of a quantized model on its own inside the scope.

    `part` is a sublayer of `block`, such as the backbone of a task.
    """
    if isinstance(part, QuantizedBlock) or not isinstance(block, QuantizedBlock):
        yield
        return
    with as_it_was(part):
        places = _places_in(sublayers(part), sublayers(block), block._places)
        if places:
            to_quantized(part, places)
        yield


# A registered name takes precedence over every custom object scope of Keras.
_become: ContextVar[Any] = ContextVar("become", default=_become_block)


def _replace_weights(block: Layer, layers: list[Any], codes: Codes = None) -> None:
    """Replace the existing float weights of a block."""
    missing = False
    for place in block._places:
        owner = layers[place.layer] if place.layer < len(layers) else None
        # With LoRA, `getattr(owner, "kernel")` includes the LoRA delta.
        weight = vars(owner).get(place.attribute)
        if weight is None:
            missing = True
        elif not isinstance(weight, StandIn):
            stand_in = _stand_in_for(weight, owner, place, codes)
            for holder in _exchange(weight, owner, layers, stand_in):
                _change_class(holder, owner_form(holder))
    # Loops dequantize their inner kernels once per call instead of once per step.
    loops = _LOOPS[: 1 + any(place.fake for place in block._places)]
    for layer in layers:
        if isinstance(layer, loops) and stand_ins(layer):
            _change_class(layer, QuantizedRecurrent)
    vars(block)["_missing"] = missing
    if not missing:
        enable_lora_inside(block)


def _stand_in_for(
    weight: Variable, owner: Layer, place: WeightPlace, codes: Codes
) -> StandIn:
    if place.fake:
        learns, path = place.learned, place.path
        stand_in = FakeQuantizedVariable(place.coding, weight, path, learned=learns)
    else:
        codes_or_none = codes.pop(id(weight), None) if codes else None
        stand_in = QuantizedVariable(
            place.coding, weight, owner.compute_dtype, codes_or_none
        )
    stand_in.block_count, stand_in.dynamic = place.block_count, place.dynamic
    stand_in.activation_scale = place.activation_scale
    return stand_in


def _exchange(
    weight: Variable, owner: Layer, layers: list[Any], stand_in: StandIn
) -> list[Any]:
    """Make layers read a float weight through its stand-in. Return these layers.

    A wrapper such as SpectralNormalization also holds the weight of its inner layer.
    Under fake quantization the wrapper keeps the float weight, from which it computes
    the value to assign.
    """
    is_fake = isinstance(stand_in, FakeQuantizedVariable)
    holders = [
        (layer, name)
        for layer in layers
        for name, value in vars(layer).items()
        if value is weight
        and not (is_fake and isinstance(layer, keras.layers.SpectralNormalization))
    ]
    for layer, name in holders:
        if is_fake:
            # Keras 3.15 cannot exchange a weight of a built layer (no known issue).
            vars(layer)[name] = stand_in
        else:
            exchange_weight(layer, name, weight, stand_in)
    with unlocked(owner):
        for variable in stand_in.parts:
            if variable is not weight:
                owner._track_variable(variable)
                if is_fake:
                    # `tf.train.Checkpoint` only finds variables that are attributes
                    # (Keras 3.15, no known issue).
                    setattr(owner, f"_{variable.name}", variable)
    return [layer for layer, _ in holders]


def _change_class(layer: Layer, form: type, *, renamed: bool = True) -> None:
    name, forms = type(layer).__name__, (*OWNERS, FakeQuantizedInside, QuantizedBlock)
    if renamed and not isinstance(layer, forms):
        name = f"Quantized{name}"
    become(layer, form, QuantizedBlock, name)
