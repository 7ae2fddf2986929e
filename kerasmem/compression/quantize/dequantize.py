"""Conversion of a model with quantized weights to a float model."""

import json
from typing import Any

import keras

# Private API: a layer shared by two others stays shared only in this scope.
from keras.src.saving.serialization_lib import ObjectSharingScope  # noqa: TID251

from kerasmem.backends import current
from kerasmem.checks import invalid
from kerasmem.compression.quantize.aware.quantizers import FakeQuantize
from kerasmem.compression.quantize.layer import read_as
from kerasmem.compression.quantize.owners import stand_ins
from kerasmem.compression.quantize.variable import own_stand_ins
from kerasmem.errors import KerasMemError, ModelError
from kerasmem.graph.clone import compile_as, lambdas_allowed, live_objects
from kerasmem.graph.from_config import (
    copy_saved_state,
    load_saved_state,
    saved_state,
    uncompiled,
)
from kerasmem.graph.full_configs import full_configs, keep_omitted, no_copy
from kerasmem.graph.layers import own_variables, sublayers
from kerasmem.graph.lora import has_lora
from kerasmem.graph.rebuild import Rebuild, Rewrite
from kerasmem.graph.values import to_numpy
from kerasmem.types import Layer, Model, Node


def dequantize(model: Model) -> Any:
    """Dequantize: return a float model with the dequantized weights of `model`.

    The float model computes the same outputs and its file loads without kerasmem.
    Activations rounded by `"int8-dynamic"` or `"int8-static"` are no longer rounded.
    For a model from `km.quantization_aware`, it is the trained float model.

    Args:
        model: A model with quantized weights or fake quantization. It is not changed.

    Returns:
        A new float model, compiled like `model`.

    Raises:
        ConfigError: If `model` is not a `keras.Model`.
        ModelError: If `model` has no quantized weights, or cannot be copied.

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
        # The config of a composite layer, such as attention, omits inner LoRA.
        if has_lora(old) and not has_lora(new):
            new.enable_lora(old.lora_rank, old.lora_alpha)
        if has_lora(old) or own_stand_ins(old):
            _carry_over(old, new)
        else:
            load_saved_state(new, *saved_state(old))
        _carry_over_preprocessor(old, new)
    if any(isinstance(layer, FakeQuantize) for layer in sublayers(float_model)):
        float_model = Rebuild(_WithoutFakeQuantize()).run(float_model)
    keep_omitted(sublayers(float_model))
    compile_as(float_model, model)
    return float_model


def _float_form(model: Model) -> Any:
    objects = live_objects(model)
    try:
        with lambdas_allowed(), full_configs(sublayers(model)), ObjectSharingScope():
            # The text copy shares no nested objects with the original.
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
    except KerasMemError:
        raise
    except Exception as error:
        raise ModelError(no_copy(model.name, error)) from error


class _WithoutFakeQuantize(Rewrite):
    def goes(self, node: Node) -> bool:
        return isinstance(node.operation, FakeQuantize)


def _layers(model: Model) -> list[Any]:
    layers = sublayers(model)
    # Keras also tracks replaced preprocessors, which a rebuilt model does not have.
    apart = [x for x in layers if _is_preprocessor(x)]
    ids = {id(x) for each in apart for x in sublayers(each)}
    return [x for x in layers if id(x) not in ids and not isinstance(x, FakeQuantize)]


def _is_preprocessor(layer: Layer) -> bool:
    classes = [c for c in type(layer).__mro__ if c.__name__ == "Preprocessor"]
    return any(c.__module__.startswith("keras_hub.") for c in classes)


def _carry_over(old: Any, new: Any) -> None:
    kernels = own_stand_ins(old)
    for name, kernel in kernels.items():
        vars(new)[name].assign(kernel.plain())
    coded_parts = [part for kernel in kernels.values() for part in kernel.parts]
    floats = [vars(new)[name] for name in kernels]
    for before, after in zip(
        _without(old, coded_parts), _without(new, floats), strict=True
    ):
        after.assign(to_numpy(before))


def _carry_over_preprocessor(old: Any, new: Any) -> None:
    before, after = (getattr(each, "preprocessor", None) for each in (old, new))
    if before is after:  # None, except in KerasHub tasks
        return
    configs = [each and each.get_config() for each in (before, after)]
    if configs[0] == configs[1]:
        copy_saved_state(before, after)
    else:
        new.preprocessor = before  # replaced after the task was constructed


def _without(layer: Layer, others: list[Any]) -> list[Any]:
    ids = set(map(id, others))
    return [variable for variable in own_variables(layer) if id(variable) not in ids]


def _check(model: Model) -> None:
    if not isinstance(model, keras.Model):
        raise invalid("dequantize", "model", model, "a keras.Model")
    is_aware = any(isinstance(layer, FakeQuantize) for layer in sublayers(model))
    if not stand_ins(model) and not is_aware:
        raise ModelError(
            f"The model {model.name!r} has nothing to dequantize: it has no weights "
            "quantized by km.Quantize."
        )
