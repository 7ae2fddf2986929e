"""A model with quantized weights, made a plain float model again."""

from typing import Any

import keras

from kerasmem.compression.quantize.aware.quantizers import FakeQuantize
from kerasmem.compression.quantize.layer import Place, is_loop, quantized_name, read_as
from kerasmem.compression.quantize.owners import stand_ins
from kerasmem.compression.quantize.static.base import IntegerLayer
from kerasmem.compression.quantize.variable import StandIn
from kerasmem.errors import ConfigError, ModelError, as_received
from kerasmem.graph.clone import compile_as, reloaded
from kerasmem.graph.forms import set_attribute
from kerasmem.graph.layers import has_graph, own_variables, sublayers
from kerasmem.graph.lora import has_lora
from kerasmem.graph.rebuild import Rebuild, Rewrite
from kerasmem.graph.values import to_numpy


def dequantize(model: Any) -> Any:
    """Dequantize: return a float model that computes what `model` does.

    Its weights are what the codes stand for, so that stock Keras opens its file. Where
    `"int8-dynamic"` rounded inputs as well, they are rounded no longer. Of a model that
    `km.quantization_aware` made it is the model as it was trained, without fake
    quantization.

    Args:
        model: one with weights in int8, int4 or 16 bits, or with fake quantization; it
            is not touched. One of `"int8-static"` is refused: its float form is the
            model it was made of.

    Returns:
        A new float model, compiled as `model` is.

    Raises:
        ConfigError: if `model` is no model.
        ModelError: if it has no weights in fewer bits, or computes with integers, or
            cannot be copied.

    Example:
        >>> import kerasmem as km
        >>> inputs = keras.Input((4,))
        >>> model = keras.Model(inputs, keras.layers.Dense(2)(inputs))
        >>> small = km.compress(model, km.Quantize("int8")).model
        >>> type(km.dequantize(small).layers[-1]) is keras.layers.Dense
        True
    """
    _check(model)
    with read_as(_float_layer):
        made = reloaded(model)
    for layer in sublayers(made):
        if _NAMED in vars(type(layer)):
            set_attribute(layer, "__class__", type(layer).__base__)
    for old, new in zip(_layers(model), _layers(made), strict=True):
        # A layer made of others, such as attention, forgets the LoRA of these.
        forgot = has_lora(old) and not has_lora(new)
        if forgot:
            new.enable_lora(old.lora_rank, old.lora_alpha)
        # What kept Keras from loading codes as if they were floats.
        was_coded = vars(new).pop(_LOADER, None) is not None
        if was_coded or forgot:
            _carry_over(old, new)
    if not any(isinstance(layer, FakeQuantize) for layer in sublayers(made)):
        return made
    plain = Rebuild(_WithoutFakeQuantize()).run(made)
    compile_as(plain, made)
    return plain


class _WithoutFakeQuantize(Rewrite):
    """Leaves out the layers that round activations."""

    def goes(self, node: Any) -> bool:
        return isinstance(node.operation, FakeQuantize)


def _layers(model: Any) -> list[Any]:
    """Return the layers of a model that have a float form."""
    return [each for each in sublayers(model) if not isinstance(each, FakeQuantize)]


_LOADER = "load_own_variables"
_NAMED = "_named_as_in_file"


def _float_layer(layer: Any, _: dict[str, Any], places: list[Place]) -> None:
    """Let a float layer stay one; what was quantized in it loads nothing."""

    def load_own_variables(store: Any) -> None:
        # The first to load of all the layers inside, which are there by now.
        inside = sublayers(layer)
        vars(layer).pop(_LOADER)
        kernels = {id(vars(inside[place.layer])[place.attribute]) for place in places}
        for inner in inside:
            # Two layers may keep one kernel.
            if kernels & set(map(id, vars(inner).values())):
                set_attribute(inner, _LOADER, _nothing)
                _name_as_in_file(inner)
            elif is_loop(inner, places) and kernels & set(map(id, inner.weights)):
                _name_as_in_file(inner)
        layer.load_own_variables(store)

    set_attribute(layer, _LOADER, load_own_variables)
    if not has_graph(layer):
        _name_as_in_file(layer)


def _name_as_in_file(layer: Any) -> None:
    """Give a layer the class name that it is counted by in the file, until it is read.

    Keras finds the layers of a list by the names of their classes.
    """
    cls = type(layer)
    if _NAMED not in vars(cls):
        named = type(quantized_name(cls), (cls,), {_NAMED: True})
        set_attribute(layer, "__class__", named)


def _nothing(store: Any) -> None:
    del store


def _carry_over(old: Any, new: Any) -> None:
    """Give a float layer the weights of the one that it was made of."""
    kernels = {
        name: value for name, value in vars(old).items() if isinstance(value, StandIn)
    }
    for name, kernel in kernels.items():
        vars(new)[name].assign(kernel.plain())
    coded = [part for kernel in kernels.values() for part in kernel.parts]
    floats = [vars(new)[name] for name in kernels]
    for before, after in zip(_without(old, coded), _without(new, floats), strict=True):
        after.assign(to_numpy(before))


def _without(layer: Any, others: list[Any]) -> list[Any]:
    ids = set(map(id, others))
    return [variable for variable in own_variables(layer) if id(variable) not in ids]


def _check(model: Any) -> None:
    if not isinstance(model, keras.Model):
        raise ConfigError(
            f"Expected a keras.Model. Received: model={as_received(model)}."
        )
    if any(isinstance(layer, IntegerLayer) for layer in sublayers(model)):
        raise ModelError(
            f"The model {model.name!r} computes with integers, so that it has no float "
            "form. Use the model that it was made of."
        )
    if not stand_ins(model) and _layers(model) == sublayers(model):
        raise ModelError(
            f"The model {model.name!r} has nothing to dequantize: km.Quantize has "
            "stored none of its weights in fewer bits."
        )
