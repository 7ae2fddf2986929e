"""Layers with weights in fewer bits: any Keras layer, with the same call and name.

A layer is quantized by a change of class: its new class computes as the old one does,
and differs in when it makes its weights float and in how it is saved. The block that a
model's config knows is saved as `kerasmem>QuantizedLayer` with the float layer's config
inside; loaded, it first becomes the float layer, is built as Keras builds it, and then
has its kernels replaced. So one mechanism serves every layer with a kernel: those of
Keras, composite ones (attention, Bidirectional, TimeDistributed), the user's own,
subclassed models.
"""

import copy
import functools
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
    has_lora,
    owner_form,
    stand_ins,
)
from kerasmem.compression.quantize.variable import QuantizedVariable, StandIn
from kerasmem.graph.layers import own_variables, sublayers


@dataclass(frozen=True)
class Place:
    """Where in a block a weight is kept, and how it is stored.

    Args:
        layer: index in `sublayers` of the block.
        attribute: name under which that layer keeps it.
        coding: how it is stored.
        block_count: number of blocks in which it becomes float, where that matters.
        dynamic: whether what it multiplies is quantized too, in every call.
        fake: whether the weight stays float, and is only read as it would be stored.
        learned: whether the scales are trained then.
        path: name of the weight for the user then.
        scales: of its codes, as they are stored; None for those of its largest entries.
            Only what the weight is to become depends on them, no config has them.
        closely: whether scales that are not given are those of the least squared error.
    """

    layer: int
    attribute: str
    coding: Coding
    block_count: int = 1
    dynamic: bool = False
    fake: bool = False
    learned: bool = False
    path: str = ""
    scales: Any = field(default=None, compare=False)
    closely: bool = field(default=False, compare=False)

    def to_json(self) -> dict[str, Any]:
        """Return this as plain data."""
        config = {**vars(self), "coding": self.coding.to_json()}
        gone = {"scales", "closely"}
        gone |= set() if self.fake else {"fake", "learned", "path"}
        return {key: value for key, value in config.items() if key not in gone}

    @classmethod
    def from_json(cls, config: dict[str, Any]) -> "Place":
        """Return what `to_json` told."""
        return cls(**{**config, "coding": Coding.from_json(config["coding"])})


Codes = dict[int, Coded] | None
"""What weights become, by the ids of their variables; each is taken out."""

_LOOPS = (keras.layers.RNN, keras.layers.TimeDistributed)
"""Layers that call others once a time step; the first of them with codes too."""

_REGISTERED = {"package": "kerasmem", "name": "QuantizedLayer"}
_LORA = ("lora_rank", "lora_alpha")
_WITH_LORA = (
    *(keras.layers.Dense, keras.layers.EinsumDense, keras.layers.Embedding),
    *(keras.layers.Conv1D, keras.layers.Conv2D, keras.layers.Conv3D),
)


@keras.saving.register_keras_serializable(**_REGISTERED)
class QuantizedBlock(keras.layers.Layer):
    """A layer of a model's config, with quantized weights; see `to_quantized`."""

    def get_config(self) -> dict[str, Any]:
        """Return the float layer's serialized form and the places of its kernels.

        And the ranks of LoRA, the only thing that is added to a layer after it was
        quantized: its own as its form tells it, those of layers inside by their place;
        and which of these are frozen.
        """
        form = copy.deepcopy(self._float_form)
        form["config"].update(_lora(self))
        inner = {str(n): layer for n, layer in enumerate(sublayers(self)) if n}
        quantizer = getattr(self, "inner_quantizer", None)
        frozen = [n for n, layer in inner.items() if not layer.trainable]
        held = {"frozen": frozen} if self.trainable and frozen else {}
        within = {} if quantizer is None else {"inside": quantizer.get_config()}
        return {
            **within,
            **held,
            "name": self.name,
            "trainable": self.trainable,
            "layer": form,
            "weights": [place.to_json() for place in self._places],
            "lora": {n: _lora(each) for n, each in inner.items() if _takes_lora(each)},
        }

    @classmethod
    def from_config(cls, config: dict[str, Any]) -> Any:
        """Return the float layer of a config, quantized as soon as it is built.

        Its constructor may build it: then it is quantized at once.
        """
        # Some layers take their config apart while they read it.
        layer = keras.saving.deserialize_keras_object(copy.deepcopy(config["layer"]))
        layer.name = config["name"]
        if layer.trainable != config["trainable"]:  # it would reach the inner layers
            layer.trainable = config["trainable"]
        places = [Place.from_json(place) for place in config["weights"]]
        inner = config.get("lora", {}), config.get("frozen", [])
        _set(layer, "_inner_lora", inner)
        _become.get()(layer, config["layer"], places)
        if "inside" in config:
            round_inside(layer, FakeQuantize.from_config(config["inside"]))
        if layer.built:
            _enable_inner_lora(layer)
        return layer

    def build_from_config(self, config: Any) -> None:
        """Build the float layer, then replace its kernels."""
        super().build_from_config(config)
        _replace_weights(self)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Call the layer, which may build it; then replace kernels that are new."""
        outputs = super().__call__(*args, **kwargs)
        if self._missing:
            _replace_weights(self)
        return outputs


@contextmanager
def read_as(
    become: Callable[[Any, dict[str, Any], list[Place]], None],
) -> Iterator[None]:
    """Return a scope in which a config's quantized layers are made by `become`.

    Args:
        become: what to do with the float layer, not built yet, its serialized form and
            the places of its weights.
    """
    token = _become.set(become)
    try:
        yield
    finally:
        _become.reset(token)


def round_inside(block: Any, quantizer: FakeQuantize) -> None:
    """Have a `QuantizedBlock` round the tensor within it, see `inside_form`."""
    if isinstance(block, QuantizedBlock):  # not where a float layer is wanted
        with unlocked(block):
            block.inner_quantizer = quantizer
        _change_class(block, inside_form(block))


def to_quantized(block: Any, places: list[Place], codes: Codes = None) -> None:
    """Replace the weights at `places` of a built layer by quantized ones, in place.

    Args:
        block: a layer that a model's config knows, or a subclassed model; some of its
            weights may be quantized already.
        places: the weights.
        codes: of those that are known; they are taken out.
    """
    if isinstance(block, QuantizedBlock):
        form, places = block._float_form, [*block._places, *places]
    else:
        form = keras.saving.serialize_keras_object(block)
        # Both are told again by the quantized form itself.
        form.pop("build_config", None)
        form.pop("compile_config", None)
    _become_block(block, form, places, codes)


def _become_block(
    layer: Any, form: dict[str, Any], places: list[Place], codes: Codes = None
) -> None:
    _set(layer, "_float_form", form)
    _set(layer, "_places", places)
    _set(layer, "_missing", value=True)
    _change_class(layer, QuantizedBlock)
    if layer.built:
        # It has its weights: it was in use, or its constructor builds it, as that of a
        # model with inputs and outputs does. Nothing builds it a second time.
        _replace_weights(layer, codes)


# A name that is registered means the same in every scope of Keras's own.
_become: ContextVar[Any] = ContextVar("become", default=_become_block)


def _replace_weights(block: Any, codes: Codes = None) -> None:
    """Replace those weights that are there and still float."""
    layers = sublayers(block)
    missing = False
    for place in block._places:
        owner = layers[place.layer] if place.layer < len(layers) else None
        # Not `getattr`: with LoRA the attribute `kernel` is more than the weight.
        weight = vars(owner).get(place.attribute)
        if weight is None:
            missing = True
        elif not isinstance(weight, StandIn):
            stand_in = _stand_in_for(weight, owner, place, codes)
            for holder in _exchange(weight, owner, layers, stand_in):
                _change_class(holder, owner_form(holder))
    is_fake = any(place.fake for place in block._places)
    for layer in layers:
        if isinstance(layer, _LOOPS[: 1 + is_fake]) and stand_ins(layer):
            _change_class(layer, QuantizedRecurrent)
    _set(block, "_missing", value=missing)
    if not missing:
        _enable_inner_lora(block)


def _stand_in_for(weight: Any, owner: Any, place: Place, codes: Codes) -> StandIn:
    """Return what a float weight is read through, as its place says."""
    if place.fake:
        learned, path = place.learned, place.path
        made = FakeQuantizedVariable(place.coding, weight, path, learned=learned)
    else:
        known = codes.pop(id(weight), None) if codes else None
        made = QuantizedVariable(place.coding, weight, owner.compute_dtype, known)
    made.block_count, made.dynamic = place.block_count, place.dynamic
    return made


def _exchange(
    weight: Any, owner: Any, layers: list[Any], stand_in: StandIn
) -> list[Any]:
    """Have layers read a float weight through its stand-in; return these layers.

    Usually that is `owner` alone; a wrapper such as SpectralNormalization keeps the
    weight of the layer inside it as well. Under fake quantization, where the float
    weight stays tracked, it goes on reading that, of which it makes what it assigns.

    Args:
        weight: the float weight.
        owner: the layer that is to track the variables of the stand-in.
        layers: the layers to look in, `owner` among them.
        stand_in: what holds the weight.
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
            _set(layer, name, stand_in)
        else:
            exchange_weight(layer, name, weight, stand_in)
    with unlocked(owner):
        for variable in stand_in.parts:
            if variable is not weight:
                owner._track_variable(variable)
                if is_fake:
                    # As an attribute as well: so a `tf.train.Checkpoint` finds it.
                    setattr(owner, f"_{variable.name}", variable)
    return [layer for layer, _ in holders]


@contextmanager
def part_as_block(block: Any, part: Any) -> Iterator[None]:
    """Let a model within a quantized one be saved by itself, while the scope is open.

    Args:
        block: a model; where it is no `QuantizedBlock`, nothing is done.
        part: one of its `sublayers`, such as the backbone of a task.
    """
    if part is block or not isinstance(block, QuantizedBlock):
        yield
        return
    layers, inside = sublayers(block), {id(v): n for n, v in enumerate(sublayers(part))}
    places = [
        replace(place, layer=inside[id(layers[place.layer])])
        for place in block._places
        if id(layers[place.layer]) in inside
    ]
    cls, before = type(part), {*vars(part)}
    if places:
        to_quantized(part, sorted(places, key=lambda place: place.layer))
    try:
        yield
    finally:
        _set(part, "__class__", cls)
        for name in {*vars(part)} - before:
            object.__delattr__(part, name)


def _lora(layer: Any) -> dict[str, Any]:
    """Return the rank of a layer's LoRA as its constructor takes it, or nothing."""
    return {key: vars(layer)[key] for key in _LORA if vars(layer).get(key)}


def _takes_lora(layer: Any) -> bool:
    # One of the user's own may have a rank that means something else.
    return isinstance(layer, _WITH_LORA) and has_lora(layer)


def _enable_inner_lora(block: Any) -> None:
    """Enable LoRA in layers inside a built block, and freeze those that were frozen."""
    layers = sublayers(block)
    ranks, frozen = vars(block).pop("_inner_lora", ({}, []))
    for place, lora in ranks.items():
        layer = layers[int(place)]
        if not layer.lora_enabled:
            layer.enable_lora(*(lora[key] for key in _LORA))
    for place in frozen:
        for weight in own_variables(layers[int(place)]):
            weight.trainable = False
        _set(layers[int(place)], "_trainable", value=False)


def _change_class(layer: Any, form: type) -> None:
    if not isinstance(layer, form):
        _set(layer, "__class__", _combined(form, type(layer)))


@functools.cache
def _combined(form: type, cls: type) -> type:
    """Return a class that is `cls` and behaves as `form` where the two differ."""
    known = (*OWNERS, FakeQuantizedInside, QuantizedBlock)
    name = cls.__name__ if issubclass(cls, known) else f"Quantized{cls.__name__}"
    combined = type(name, (form, cls), {"__module__": __name__})
    # All are saved under the one name that `QuantizedBlock.from_config` answers to.
    register = keras.saving.register_keras_serializable(**_REGISTERED)
    register(combined)
    register(QuantizedBlock)
    return combined


def _set(layer: Any, name: str, value: Any) -> None:
    # Not `setattr`: Keras would wrap the value, and refuse a layer that is built.
    object.__setattr__(layer, name, value)
