"""Layers with int8 weights: any Keras layer, with the same call and the same name.

A layer becomes int8 by a change of class: its new class computes as the old one does,
and differs in how it is saved. The block that a model's config knows is saved as
`kerasmem>Int8Layer` with the float layer's config inside; loaded, it first becomes the
float layer, is built as Keras builds it, and then has its kernels replaced. So one
mechanism serves every layer with a kernel: those of Keras, composite ones (attention,
Bidirectional, TimeDistributed), the user's own, subclassed models.
"""

import copy
import functools
from typing import Any

import keras

from kerasmem.compression.quantize.variable import Int8Variable, replace_by_int8
from kerasmem.graph.layers import sublayers

Place = tuple[int, str, tuple[int, ...]]
"""Where a kernel is kept: index in `sublayers`, attribute, axes that share a scale."""

_REGISTERED = {"package": "kerasmem", "name": "Int8Layer"}


class Int8Owner(keras.layers.Layer):
    """A layer some of whose own weights are int8."""

    def save_own_variables(self, store: Any) -> None:
        """Save all own variables in order: Dense and others look for float kernels."""
        keras.layers.Layer.save_own_variables(self, store)

    def load_own_variables(self, store: Any) -> None:
        """Load what `save_own_variables` saved."""
        keras.layers.Layer.load_own_variables(self, store)


class Int8Embedding(Int8Owner):
    """An Embedding that makes float only the rows that are looked up."""

    def call(self, inputs: Any) -> Any:
        """Return the rows at `inputs`, shape `(*inputs.shape, output_dim)`."""
        if keras.backend.standardize_dtype(inputs.dtype) not in ("int32", "int64"):
            inputs = keras.ops.cast(inputs, "int32")
        return self._embeddings.rows(inputs)


class Int8Recurrent(keras.layers.Layer):
    """An RNN that makes its cell's kernels float once a call, not once a time step."""

    def call(self, *args: Any, **kwargs: Any) -> Any:
        """Run the layer with the float kernels at hand."""
        kernels = int8_variables(self)
        for kernel in kernels:
            kernel.hoist()
        try:
            return super().call(*args, **kwargs)
        finally:
            for kernel in kernels:
                kernel.drop()


@keras.saving.register_keras_serializable(**_REGISTERED)
class Int8Block(keras.layers.Layer):
    """A layer that a model's config knows, with int8 weights in it; see `to_int8`."""

    def get_config(self) -> dict[str, Any]:
        """Return the float layer's serialized form and the places of its kernels."""
        return {
            "name": self.name,
            "trainable": self.trainable,
            "layer": copy.deepcopy(self._float_form),
            "kernels": [[i, name, list(axes)] for i, name, axes in self._places],
        }

    @classmethod
    def from_config(cls, config: dict[str, Any]) -> Any:
        """Return the float layer of a config, to become int8 as soon as it is built."""
        # Some layers take their config apart while they read it.
        form = copy.deepcopy(config["layer"])
        layer = keras.saving.deserialize_keras_object(form)
        layer.name = config["name"]
        if layer.trainable != config["trainable"]:  # it would reach the inner layers
            layer.trainable = config["trainable"]
        places = [(i, name, tuple(axes)) for i, name, axes in config["kernels"]]
        _become_block(layer, config["layer"], places)
        return layer

    def build_from_config(self, config: Any) -> None:
        """Build the float layer, then replace its kernels."""
        super().build_from_config(config)
        _replace_kernels(self)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Call the layer, which may build it; then replace kernels that are new."""
        outputs = super().__call__(*args, **kwargs)
        if self._missing:
            _replace_kernels(self)
        return outputs


def to_int8(block: Any, places: list[Place]) -> None:
    """Replace the kernels at `places` of a built layer by int8 ones, in place.

    Args:
        block: a layer that a model's config knows, or a subclassed model.
        places: the kernels, at least one.
    """
    form = keras.saving.serialize_keras_object(block)
    # Both are told again by the int8 form itself.
    form.pop("build_config", None)
    form.pop("compile_config", None)
    _become_block(block, form, places)
    _replace_kernels(block)


def _become_block(layer: Any, form: dict[str, Any], places: list[Place]) -> None:
    _set(layer, "_float_form", form)
    _set(layer, "_places", places)
    _set(layer, "_missing", value=True)
    _change_class(layer, Int8Block)


def _replace_kernels(block: Any) -> None:
    """Replace those kernels that are there and still float."""
    layers = sublayers(block)
    missing = False
    for index, attribute, axes in block._places:
        owner = layers[index] if index < len(layers) else None
        kernel = getattr(owner, attribute, None)
        if kernel is None:
            missing = True
        elif not isinstance(kernel, Int8Variable):
            for holder in replace_by_int8(kernel, owner, layers, axes):
                _become_owner(holder)
    for layer in layers:
        if isinstance(layer, keras.layers.RNN) and int8_variables(layer):
            _change_class(layer, Int8Recurrent)
    _set(block, "_missing", value=missing)


def _become_owner(layer: Any) -> None:
    cls = type(layer)
    if cls.call is keras.layers.Embedding.call:
        _change_class(layer, Int8Embedding)
    elif cls.save_own_variables.__module__.startswith("keras."):
        # A layer that saves itself in a way of its own goes on doing so.
        _change_class(layer, Int8Owner)


def int8_variables(layer: Any) -> list[Int8Variable]:
    """Return the int8 weights of a layer or model, each once."""
    values = (v for inner in sublayers(layer) for v in vars(inner).values())
    return list({id(v): v for v in values if isinstance(v, Int8Variable)}.values())


def _change_class(layer: Any, form: type) -> None:
    if not isinstance(layer, form):
        _set(layer, "__class__", _combined(form, type(layer)))


@functools.cache
def _combined(form: type, cls: type) -> type:
    """Return a class that is `cls` and behaves as `form` where the two differ."""
    name = cls.__name__ if issubclass(cls, _FORMS) else f"Int8{cls.__name__}"
    combined = type(name, (form, cls), {"__module__": __name__})
    # All are saved under the one name that `Int8Block.from_config` answers to.
    register = keras.saving.register_keras_serializable(**_REGISTERED)
    register(combined)
    register(Int8Block)
    return combined


_FORMS = (Int8Block, Int8Owner, Int8Recurrent)


def _set(layer: Any, name: str, value: Any) -> None:
    # Not `setattr`: Keras would wrap the value, and refuse a layer that is built.
    object.__setattr__(layer, name, value)
