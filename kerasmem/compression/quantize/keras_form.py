"""Conversion to the int8 form of Keras, which loads without kerasmem.

Keras has an int8 form of Dense, EinsumDense and Embedding. Keras divides by a scale and
kerasmem multiplies by one, so the scales are reciprocals of each other. The codes are
equal.
"""

from typing import Any

import keras
import numpy as np

from kerasmem.compression.quantize.coding import Coding
from kerasmem.compression.quantize.dequantize import dequantize
from kerasmem.compression.quantize.variable import (
    QuantizedVariable,
    StandIn,
    own_stand_ins,
)
from kerasmem.errors import ConfigError
from kerasmem.graph.clone import objects_of
from kerasmem.graph.layers import sublayers
from kerasmem.graph.values import to_numpy
from kerasmem.types import Layer, Model

_LAYERS = (keras.layers.Dense, keras.layers.EinsumDense, keras.layers.Embedding)
_MODE = "int8"


def keras_int8(model: Model) -> Any:
    """Return a model of Keras layers with the same int8 codes.

    Activations are not rounded.

    Args:
        model: A model quantized with `km.Quantize("int8")`. It is not changed.

    Raises:
        ConfigError: If Keras has no int8 form of a weight or cannot save that form.
        ModelError: If the model has no quantized weights.

    Example:
        >>> import kerasmem as km
        >>> model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(2)])
        >>> small = km.compress(model, km.Quantize("int8")).model
        >>> keras_int8(small).layers[-1].quantization_mode
        'int8'
    """
    keras_model = dequantize(model)
    pairs = zip(sublayers(model), sublayers(keras_model), strict=True)
    for old, new in pairs:
        for stand_in in own_stand_ins(old).values():
            _check(old, new, stand_in)
            _become_int8(new, stand_in)
    _check_saved(keras_model)
    return keras_model


def _check(old: Any, new: Any, stand_in: StandIn) -> None:
    coding = stand_in.coding
    is_int8 = coding == Coding(_MODE, coding.axes, group_size=coding.group_size)
    if not isinstance(stand_in, QuantizedVariable) or stand_in.dynamic or not is_int8:
        raise ConfigError(
            "The int8 form of Keras needs weights from km.Quantize('int8') with "
            "symmetric scales per channel. Received: other codes or scales in the "
            f"layer {old.name!r}, of type {coding.dtype}."
        )
    if type(new) not in _LAYERS or coding.axes != _summed_axes(new):
        raise ConfigError(
            f"Keras has no int8 form of the layer {new.name!r} of class "
            f"{type(new).__name__}. Expected: Dense, EinsumDense, Embedding. Next: "
            "exclude the layer: km.Quantize('int8', exclude=...) (--quantize-exclude)."
        )


def _summed_axes(layer: Layer) -> tuple[int, ...]:
    if isinstance(layer, keras.layers.EinsumDense):
        # Keras has no public API for the axes of the equation.
        layer._set_quantization_info()
        return tuple(sorted(layer._kernel_reduced_axes))
    return (1,) if isinstance(layer, keras.layers.Embedding) else (0,)


def _become_int8(layer: Layer, stand_in: StandIn) -> None:
    codes, scales = map(to_numpy, stand_in.parts)
    config = keras.quantizers.Int8QuantizationConfig(activation_quantizer=None)
    layer.quantize(_MODE, config=config)
    reciprocal = (1 / scales.astype(np.float64)).astype(np.float32)
    if isinstance(layer, keras.layers.Embedding):
        layer._embeddings.assign(codes)
        layer.embeddings_scale.assign(reciprocal[:, 0])
        return
    if isinstance(layer, keras.layers.EinsumDense):
        # Keras stores scales in the layout of the equation's output.
        reciprocal = layer._adjust_scale_for_quant(reciprocal, "kernel")
    layer._kernel.assign(codes)
    layer.kernel_scale.assign(keras.ops.reshape(reciprocal, layer.kernel_scale.shape))


def _check_saved(model: Model) -> None:
    """Raise if the model would change when it is saved and loaded.

    Keras restores the int8 form from the config of a layer. The config of a composite
    layer, such as attention, does not contain the form of inner layers.
    """
    with keras.saving.custom_object_scope(objects_of(sublayers(model))):
        reloaded_model = type(model).from_config(model.get_config())
    for layer, other in zip(sublayers(model), sublayers(reloaded_model), strict=True):
        if isinstance(layer, _LAYERS) and _form(layer) != _form(other):
            raise ConfigError(
                f"Keras does not save the int8 form of the layer {layer.path!r}, "
                "because it is inside another layer. Next: exclude the layer: "
                "km.Quantize('int8', exclude=...) (--quantize-exclude)."
            )


def _form(layer: Layer) -> tuple[str | None, bool]:
    return layer.quantization_mode, layer.quantization_config is not None
