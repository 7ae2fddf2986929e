"""A model with quantized weights, made a plain float model again."""

import json
from typing import Any

import keras

# Private: a layer that two others tell of is one in a file, and in no config else.
from keras.src.saving.serialization_lib import ObjectSharingScope  # noqa: TID251

from kerasmem.backends import current
from kerasmem.checks import invalid
from kerasmem.compression.quantize.aware.quantizers import FakeQuantize
from kerasmem.compression.quantize.layer import read_as
from kerasmem.compression.quantize.owners import stand_ins
from kerasmem.compression.quantize.variable import StandIn
from kerasmem.errors import ModelError
from kerasmem.graph.clone import compile_as, lambdas_allowed, live_objects
from kerasmem.graph.from_config import (
    copy_saved_state,
    load_saved_state,
    saved_state,
    uncompiled,
)
from kerasmem.graph.full_configs import full_configs, no_copy
from kerasmem.graph.layers import own_variables, sublayers
from kerasmem.graph.lora import has_lora
from kerasmem.graph.rebuild import Rebuild, Rewrite
from kerasmem.graph.values import to_numpy
from kerasmem.types import Layer, Model, Node


def dequantize(model: Model) -> Any:
    """Dequantize: return a float model that computes what `model` does.

    Its weights are what the codes stand for, so that stock Keras opens its file. Where
    `"int8-dynamic"` or `"int8-static"` rounded activations as well, they are rounded no
    longer. Of a model that `km.quantization_aware` made it is the model as it was
    trained, without fake quantization.

    Args:
        model: one with weights in int8, int4 or 16 bits, or with fake quantization; it
            is not touched.

    Returns:
        A new float model, compiled as `model` is.

    Raises:
        ConfigError: if `model` is no model.
        ModelError: if it has no weights in fewer bits, or cannot be copied.

    Example:
        >>> import kerasmem as km
        >>> inputs = keras.Input((4,))
        >>> model = keras.Model(inputs, keras.layers.Dense(2)(inputs))
        >>> small = km.compress(model, km.Quantize("int8")).model
        >>> type(km.dequantize(small).layers[-1]) is keras.layers.Dense
        True
    """
    _check(model)
    float_model = _float_form(model)
    for old, new in zip(_layers(model), _layers(float_model), strict=True):
        # A layer made of others, such as attention, forgets the LoRA of these.
        if has_lora(old) and not has_lora(new):
            new.enable_lora(old.lora_rank, old.lora_alpha)
        if has_lora(old) or _has_codes(old):
            _carry_over(old, new)
        else:
            load_saved_state(new, *saved_state(old))
        if getattr(old, "preprocessor", None) is not None:  # of a task of KerasHub
            copy_saved_state(old.preprocessor, new.preprocessor)
    if any(isinstance(layer, FakeQuantize) for layer in sublayers(float_model)):
        float_model = Rebuild(_WithoutFakeQuantize()).run(float_model)
    compile_as(float_model, model)
    return float_model


def _float_form(model: Model) -> Any:
    objects = live_objects(model)
    try:
        with lambdas_allowed(), full_configs(sublayers(model)), ObjectSharingScope():
            # By way of text, as in a file: what is nested in it is nobody else's.
            form = json.dumps(keras.saving.serialize_keras_object(model))
        with (
            keras.saving.custom_object_scope(objects),
            current().replicating(model),
            read_as(lambda *_: None),
            ObjectSharingScope(),
        ):
            return keras.saving.deserialize_keras_object(
                uncompiled(json.loads(form)), safe_mode=False
            )
    except Exception as error:
        raise ModelError(no_copy(model.name, error)) from error


class _WithoutFakeQuantize(Rewrite):
    """Leaves out the layers that round activations."""

    def goes(self, node: Node) -> bool:
        return isinstance(node.operation, FakeQuantize)


def _layers(model: Model) -> list[Any]:
    return [each for each in sublayers(model) if not isinstance(each, FakeQuantize)]


def _has_codes(layer: Layer) -> bool:
    return any(isinstance(value, StandIn) for value in vars(layer).values())


def _carry_over(old: Any, new: Any) -> None:
    kernels = {
        name: value for name, value in vars(old).items() if isinstance(value, StandIn)
    }
    for name, kernel in kernels.items():
        vars(new)[name].assign(kernel.plain())
    coded_parts = [part for kernel in kernels.values() for part in kernel.parts]
    floats = [vars(new)[name] for name in kernels]
    for before, after in zip(
        _without(old, coded_parts), _without(new, floats), strict=True
    ):
        after.assign(to_numpy(before))


def _without(layer: Layer, others: list[Any]) -> list[Any]:
    ids = set(map(id, others))
    return [variable for variable in own_variables(layer) if id(variable) not in ids]


def _check(model: Model) -> None:
    if not isinstance(model, keras.Model):
        raise invalid("dequantize", "model", model, "a keras.Model")
    if not stand_ins(model) and _layers(model) == sublayers(model):
        raise ModelError(
            f"The model {model.name!r} has nothing to dequantize: km.Quantize has "
            "stored none of its weights in fewer bits."
        )
