"""What stands in a file whose weights are coded, in the place of the model.

Stock `keras.models.load_model` makes it from the file's config, and gets the plain
model instead: the one class of the saved model, with its own layers.
"""

from typing import Any

import keras

from kerasmem.errors import ModelFileError
from kerasmem.files.weights import uncoded


@keras.saving.register_keras_serializable("kerasmem")
class CodedModel:
    """Never an object: it only names how a file is to be read."""

    @staticmethod
    def wrap(config: dict[str, Any]) -> dict[str, Any]:
        """Return the config of a file with coded weights.

        Args:
            config: what `keras.saving.serialize_keras_object` tells of the model.
        """
        config = dict(config)
        # Where Keras looks for it, and leaves it out if asked for no compilation.
        compiled = config.pop("compile_config", None)
        return {
            "module": __name__,
            "class_name": CodedModel.__name__,
            "config": {"model": config},
            "registered_name": f"kerasmem>{CodedModel.__name__}",
            "compile_config": compiled,
        }

    def get_config(self) -> dict[str, Any]:
        """Return nothing: Keras asks for it to register the class."""
        return {}

    @classmethod
    def from_config(cls, config: dict[str, Any]) -> Any:
        """Return the model that was saved; its weights are decoded as it loads them."""
        model = keras.saving.deserialize_keras_object(config["model"])
        if not isinstance(model, keras.Model):
            raise ModelFileError("There is no model in a file of coded weights.")

        def load_own_variables(store: Any) -> None:
            # The model is the first to load. All others read from the same store.
            object.__delattr__(model, "load_own_variables")
            store.__class__ = type("DecodingStore", (_Decoding, type(store)), {})
            model.load_own_variables(store)

        object.__setattr__(model, "load_own_variables", load_own_variables)
        return model


class _Decoding:
    """What a store of Keras gives, decoded."""

    def __getitem__(self, key: str) -> Any:
        return uncoded(super().__getitem__(key))  # pyright: ignore[reportAttributeAccessIssue]
