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
from kerasmem.types import Layer


@dataclass(frozen=True)
class WeightPlace:
    """Where in a block a weight is kept, and how it is stored.

    Args:
        layer: index in `sublayers` of the block.
        attribute: name under which that layer keeps it.
        coding: how it is stored.
        block_count: number of blocks in which it becomes float, where that matters.
        dynamic: whether what it multiplies is quantized too, in every call.
        activation_scale: of what it multiplies then; None for one that each call finds.
        fake: whether the weight stays float, and is only read as it would be stored.
        learned: whether the scales are trained then.
        path: name of the weight for the user then.
        scales: of its codes, as they are stored; None for those of its largest entries.
            Only what the weight is to become depends on them, no config has them.
        closely: whether scales that are not given are those of the least squared error.
        input_scales: those of inputs, if the coding has any; None for ones.
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
        """Return NumPy arrays that stand for a weight."""
        return self.coding.encode(values, self.scales, **self._options)

    def encode_and_compare(self, values: Any) -> tuple[Coded, tuple[float, float]]:
        """Return what `Coding.encode_and_compare` does."""
        return self.coding.encode_and_compare(values, self.scales, **self._options)

    @property
    def _options(self) -> dict[str, Any]:
        return {"closely": self.closely, "input_scales": self.input_scales}

    def slices(self, shape: tuple[int, ...]) -> list[tuple[slice, ...]]:
        """Return the parts of a weight that can be encoded one by one."""
        axis = None if self.scales is not None else self.coding.free_axis(shape)
        if axis is None or 0 in shape:
            return [()]
        count = min(shape[axis], math.ceil(math.prod(shape) / _SLICE))
        step = math.ceil(shape[axis] / max(count, 1))
        before = (slice(None),) * axis
        starts = range(0, shape[axis], max(step, 1))
        return [(*before, slice(start, start + step)) for start in starts]

    def to_json(self) -> dict[str, Any]:
        """Return this as plain data."""
        config = {**vars(self), "coding": self.coding.to_json()}
        left_out = {"scales", "closely", "input_scales"}
        left_out |= set() if self.fake else {"fake", "learned", "path"}
        left_out |= {"activation_scale"} if self.activation_scale is None else set()
        return {key: value for key, value in config.items() if key not in left_out}

    @classmethod
    def from_json(cls, config: dict[str, Any]) -> "WeightPlace":
        """Return what `to_json` told."""
        return cls(**{**config, "coding": Coding.from_json(config["coding"])})


_SLICE = 1 << 20
"""Entries that are encoded at a time."""

Codes = dict[int, Coded] | None
"""What weights become, by the ids of their variables; each is taken out."""

_LOOPS = (keras.layers.RNN, keras.layers.TimeDistributed)
"""Layers that call others once a time step; the first of them with codes too."""


@keras.saving.register_keras_serializable("kerasmem", "QuantizedLayer")
class QuantizedBlock(keras.layers.Layer):
    """A layer of a model's config, with quantized weights; see `to_quantized`."""

    def get_config(self) -> dict[str, Any]:
        """Return the float layer's serialized form and the places of its kernels.

        And the ranks of LoRA, the only thing that is added to a layer after it was
        quantized: its own as its form tells it, those of layers inside by their place;
        and which of these are frozen.
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
        """Return the float layer of a config, quantized as soon as it is built.

        Its constructor may build it: then it is quantized at once.
        """
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
        """Call the layer, which may build it; then replace kernels that are new."""
        outputs = super().__call__(*args, **kwargs)
        if self._missing:
            _replace_weights(self, sublayers(self))
        return outputs


@contextmanager
def read_as(
    become: Callable[[Any, dict[str, Any], list[WeightPlace]], None],
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


def round_inside(block: Layer, quantizer: FakeQuantize) -> None:
    """Have a `QuantizedBlock` round the tensor within it, see `inside_form`."""
    if isinstance(block, QuantizedBlock):  # not where a float layer is wanted
        with unlocked(block):
            block.inner_quantizer = quantizer
        _change_class(block, inside_form(block))


def to_quantized(block: Layer, places: list[WeightPlace], codes: Codes = None) -> None:
    """Replace the weights at `places` of a built layer by quantized ones, in place.

    Args:
        block: a layer that a model's config knows, or a subclassed model; some of its
            weights may be quantized already.
        places: the weights.
        codes: of those that are known; they are taken out.
    """
    if isinstance(block, QuantizedBlock):
        places = [*block._places, *places]
    _become_block(block, _float_form(block, sublayers(block)), places, codes)


def _float_form(block: Layer, layers: list[Any]) -> dict[str, Any]:
    """Return the serialized form of the float layer that a layer is, or was.

    Args:
        block: the layer.
        layers: its `sublayers`.
    """
    if isinstance(block, QuantizedBlock):
        return block._float_form
    with full_configs(layers):
        form = keras.saving.serialize_keras_object(block)
    # Both are told again by the quantized form itself.
    form.pop("build_config", None)
    form.pop("compile_config", None)
    return form


def _become_block(
    layer: Layer, form: dict[str, Any], places: list[WeightPlace], codes: Codes = None
) -> None:
    # Of what has factors a part is saved as one in `part_as_block` alone: codes come
    # after factors there too.
    layers = sublayers(layer)
    parts = [(layers, form, places)]
    if not (form["module"] or "").startswith("kerasmem."):
        parts += _models_inside(layers, places)
    for inner, own_form, own_places in parts:
        part = inner[0]  # the block itself, or a model inside of it
        # Not `setattr`: Keras would wrap the values, and refuse a layer that is built.
        vars(part).update(_float_form=own_form, _places=own_places, _missing=True)
        # A model within others is found in files by the name of its class.
        _change_class(part, QuantizedBlock, renamed=not has_graph(part))
        if part.built:
            # It has its weights: it was in use, or its constructor builds it, as that
            # of a model with inputs and outputs does. Nothing builds it a second time.
            _replace_weights(part, inner, codes)


def _models_inside(
    layers: list[Any], places: list[WeightPlace]
) -> list[tuple[list[Any], dict[str, Any], list[WeightPlace]]]:
    """Return the layers, forms and places of models with a graph inside of a block.

    Such as the backbone of a task: it is saved by itself, and other models are made
    around it.

    Args:
        layers: `sublayers` of the block.
        places: where its weights are kept.
    """
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
    """Let a model within a quantized one be saved by itself, while the scope is open.

    Args:
        block: a model; where it is no `QuantizedBlock`, nothing is done.
        part: one of its `sublayers`, such as the backbone of a task.
    """
    if isinstance(part, QuantizedBlock) or not isinstance(block, QuantizedBlock):
        yield
        return
    with as_it_was(part):
        places = _places_in(sublayers(part), sublayers(block), block._places)
        if places:
            to_quantized(part, places)
        yield


# A name that is registered means the same in every scope of Keras's own.
_become: ContextVar[Any] = ContextVar("become", default=_become_block)


def _replace_weights(block: Layer, layers: list[Any], codes: Codes = None) -> None:
    """Replace those weights of a block that are there and still float.

    Args:
        block: the block.
        layers: its `sublayers`.
        codes: of weights that are known; they are taken out.
    """
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
    # They read the kernels inside once a call, not once a step.
    loops = _LOOPS[: 1 + any(place.fake for place in block._places)]
    for layer in layers:
        if isinstance(layer, loops) and stand_ins(layer):
            _change_class(layer, QuantizedRecurrent)
    vars(block)["_missing"] = missing
    if not missing:
        enable_lora_inside(block)


def _stand_in_for(weight: Any, owner: Any, place: WeightPlace, codes: Codes) -> StandIn:
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
            # No issue known: Keras 3.15 exchanges no weight of a layer that is built.
            vars(layer)[name] = stand_in
        else:
            exchange_weight(layer, name, weight, stand_in)
    with unlocked(owner):
        for variable in stand_in.parts:
            if variable is not weight:
                owner._track_variable(variable)
                if is_fake:
                    # As an attribute as well: so a `tf.train.Checkpoint` finds it. No
                    # issue known; Keras 3.15 shows it variables in attributes alone.
                    setattr(owner, f"_{variable.name}", variable)
    return [layer for layer, _ in holders]


def _change_class(layer: Layer, form: type, *, renamed: bool = True) -> None:
    name, forms = type(layer).__name__, (*OWNERS, FakeQuantizedInside, QuantizedBlock)
    if renamed and not isinstance(layer, forms):
        name = f"Quantized{name}"
    become(layer, form, QuantizedBlock, name)
