"""What stands in a file in the place of the model whose weights are read otherwise.

Keras makes it from the file's config, and gets the plain model instead: the one class
of the saved model, with its own layers.
"""

from collections.abc import Callable
from typing import Any

import keras
import numpy as np

from kerasmem.errors import ModelFileError
from kerasmem.files.weights import uncoded


def wrapped(config: dict[str, Any], name: str, module: str) -> dict[str, Any]:
    """Return the config of a file whose weights are read otherwise.

    Args:
        config: what `keras.saving.serialize_keras_object` tells of the model.
        name: of the class that stands in the model's place.
        module: the module it is in.
    """
    config = dict(config)
    # Where Keras looks for it, and leaves it out if asked for no compilation.
    compiled = config.pop("compile_config", None)
    return {
        "module": module,
        "class_name": name,
        "config": {"model": config},
        "registered_name": f"kerasmem>{name}",
        "compile_config": compiled,
    }


def unwrapped(config: dict[str, Any], read: Callable[[np.ndarray], np.ndarray]) -> Any:
    """Return the model within the config that `wrapped` made.

    Args:
        config: the inner one.
        read: returns the weight that an array in the file stands for.
    """
    model = keras.saving.deserialize_keras_object(config["model"])
    if not isinstance(model, keras.Model):
        raise ModelFileError("There is no model in a file of coded weights.")

    def load_own_variables(store: Any) -> None:
        # The model is the first to load. All others read from the same store.
        object.__delattr__(model, "load_own_variables")

        def get(store: Any, key: str) -> np.ndarray:
            return read(original.__getitem__(store, key))

        original = type(store)
        store.__class__ = type("Reading", (original,), {"__getitem__": get})
        model.load_own_variables(store)

    object.__setattr__(model, "load_own_variables", load_own_variables)
    return model


@keras.saving.register_keras_serializable("kerasmem")
class CodedModel:
    """Never an object: it only says that the weights are coded."""

    @staticmethod
    def wrap(config: dict[str, Any]) -> dict[str, Any]:
        """Return the config of a file with coded weights, of that of a model."""
        return wrapped(config, CodedModel.__name__, __name__)

    def get_config(self) -> dict[str, Any]:
        """Return nothing: Keras asks for it to register the class."""
        return {}

    @classmethod
    def from_config(cls, config: dict[str, Any]) -> Any:
        """Return the model that was saved; its weights are decoded as it loads them."""
        return unwrapped(config, uncoded)
