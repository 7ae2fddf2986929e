"""Builds a copy of a model that has no weights yet."""

from typing import Any

import keras
import numpy as np

from kerasmem.backends import current
from kerasmem.backends.seeding import generators_kept
from kerasmem.checks import InstanceOf
from kerasmem.errors import ModelError, first_line, text_of
from kerasmem.files.data.forms import sample_inputs
from kerasmem.graph.clone import compile_as
from kerasmem.graph.from_config import set_alike
from kerasmem.graph.input_shapes import is_shape, with_lengths
from kerasmem.graph.layers import has_weights, of_one_class, sublayers
from kerasmem.processes.transfer import pack, unpack
from kerasmem.types import Dataset, Model


def built_model(model: Model, input_shape: Any | None, data: Dataset | None) -> Any:
    """Return the model, or a built copy in host memory if it has no weights.

    Raises:
        ModelError: If the model cannot be copied, or cannot be built without
            `input_shape` or `data`.
        ConfigError: If `model` is not a Keras model, or `input_shape` is invalid.
    """
    valid = InstanceOf(keras.Model, "a keras.Model")
    valid.check("estimate_memory", "model", model)
    if model.built or has_weights(model):
        return model
    if input_shape is None and data is None:
        raise ModelError(
            "The model has no weights yet, so its memory is unknown. Expected: a "
            "built model, or the shape of its inputs. Received: "
            f"model={model.name!r}, not built. Next: pass input_shape= or data=, "
            "or call the model on a batch to build its weights."
        )
    x = sample_inputs(data, 1) if data is not None else _zeros(input_shape)
    with keras.device("cpu"), current().replicating(model), generators_kept():
        copy = unpack(pack(model, None, None), jit_compile=False)
        set_alike(of_one_class(sublayers(copy), sublayers(model)))
        try:
            if isinstance(copy, keras.Sequential) and not keras.tree.is_nested(x):
                copy.build((None, *x.shape[1:]))
            else:
                copy(x)
        except Exception as error:
            raise ModelError(
                f"The model {model.name!r} cannot be built. Received: "
                f"{first_line(text_of(error)).rstrip('.')}. Next: call the model on a "
                "batch of your data, or add an Input."
            ) from error
        set_alike(of_one_class(sublayers(copy), sublayers(model)))
        compile_as(copy, model)
    return copy


def _zeros(input_shape: Any) -> Any:
    names: list[Any] = ["input"]
    if isinstance(input_shape, dict):
        names = list(input_shape)
    elif isinstance(input_shape, list) and not is_shape(input_shape):
        names = list(range(len(input_shape)))
    shapes = with_lengths(dict.fromkeys(names), input_shape)
    arrays = {
        name: np.zeros([1, *(length or 1 for length in shape or ())])
        for name, shape in shapes.items()
    }
    if isinstance(input_shape, dict):
        return arrays
    return [*arrays.values()] if len(names) > 1 else arrays[names[0]]
