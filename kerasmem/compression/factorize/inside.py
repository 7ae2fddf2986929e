"""Factorizes layers inside of other layers, where the graph cannot be rebuilt.

This applies to layers inside of other layers, of subclassed models and of KerasHub
models. The layer keeps its name and bias. Its class changes to a class that calls the
factors in sequence. The factors are ordinary sublayers, so other techniques find their
kernels. The outer layer is saved as `kerasmem>FactorizedLayer` with its original config
inside. Loading restores and builds the original layer first, and then adds the factors.
"""

import copy
import functools
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import keras
import numpy as np

from kerasmem.backends.variables import (
    exchange_weight,
    forget_float_weights,
    unlocked,
)
from kerasmem.errors import ModelError
from kerasmem.graph.computed import ComputedVariable, named_beside
from kerasmem.graph.forms import become, layer_before
from kerasmem.graph.kernels import einsum_parts, with_bias_and_activation
from kerasmem.graph.layers import Weight, as_it_was, sublayers
from kerasmem.graph.lora import (
    enable_lora_inside,
    has_lora,
    lora_inside,
)
from kerasmem.types import Layer, Tensors

Forms = list[dict[str, Any]]
"""Serialized factors, in call order."""


class FactorizedKernel(ComputedVariable):
    """A kernel that is computed as the product of its factors.

    `forms` contains the serialized factor layers.
    """

    def __init__(
        self, origin: Any, owner: Any, factors: Sequence[Any], forms: Forms
    ) -> None:
        super().__init__(origin)
        self.factors, self.forms = tuple(factors), forms
        self._equation = getattr(owner, "equation", None)
        self._own_dtype = origin.dtype

    @property
    def value(self) -> Any:
        """The computed kernel."""
        return _product([each.kernel for each in self.factors], self._equation)

    def assign(self, value: Any) -> Any:
        """Raises `ModelError`, because the factors of a value are not unique."""
        names = " and ".join(factor.kernel.path for factor in self.factors)
        raise ModelError(
            f"Cannot assign to the kernel {self.path!r}, because it is a product of "
            f"factors. Next: assign to {names}. Received: a value of shape "
            f"{np.shape(value)}."
        )

    dtype = property(lambda self: self._own_dtype)

    @property
    def trainable(self) -> bool:
        """Whether the factors are trained. Enabling LoRA freezes them."""
        return any(factor._kernel.trainable for factor in self.factors)

    @trainable.setter
    def trainable(self, is_trainable: bool) -> None:
        for factor in self.factors:
            factor._kernel.trainable = is_trainable


def _product(kernels: Sequence[Any], equation: str | None) -> Any:
    if equation is None:
        return functools.reduce(keras.ops.matmul, kernels)
    first, last = kernels
    axes = np.argsort(summed_and_new(equation)).tolist()
    return keras.ops.transpose(keras.ops.tensordot(first, last, 1), axes)


def summed_and_new(equation: str) -> list[int]:
    """Returns the kernel axes of an EinsumDense, reduced axes first."""
    _, kernel, output = einsum_parts(equation)
    axes = range(len(kernel))
    return sorted(axes, key=lambda axis: (kernel[axis] in output, axis))


class FactorizedProduct(keras.layers.Layer):
    """A Dense, EinsumDense or convolution layer that calls its factors in sequence."""

    def call(self, inputs: Tensors, *args: Any, **kwargs: Any) -> Any:
        """Applies the factors in sequence. With LoRA, applies their product."""
        if has_lora(self):
            return super().call(inputs, *args, **kwargs)
        for factor in self._kernel.factors:
            inputs = factor(inputs)
        return with_bias_and_activation(self, inputs)

    def save_own_variables(self, store: Any) -> None:
        """Saves all variables in order, because Dense would look up a kernel."""
        keras.layers.Layer.save_own_variables(self, store)

    def load_own_variables(self, store: Any) -> None:
        """Loads variables saved by `save_own_variables`."""
        keras.layers.Layer.load_own_variables(self, store)


@keras.saving.register_keras_serializable("kerasmem", "FactorizedLayer")
class FactorizedBlock(keras.layers.Layer):
    """A layer with factorized sublayers; see `factorize_inside`."""

    def get_config(self) -> dict[str, Any]:
        """Returns the original config with factors and LoRA settings."""
        kernels = {n: _kernel_of(each) for n, each in enumerate(_without_factors(self))}
        return {
            "name": self.name,
            "trainable": self.trainable,
            "layer": copy.deepcopy(self._form_before),
            "factors": {
                str(n): copy.deepcopy(kernel.forms)
                for n, kernel in kernels.items()
                if kernel is not None
            },
            **lora_inside(self),
        }

    @classmethod
    def from_config(cls, config: dict[str, Any]) -> Any:
        """Creates the layer. Its factors are inserted once it is built."""
        layer = layer_before(config)
        _become_block(layer, config["layer"])
        vars(layer)["_awaited"] = config["factors"]
        _insert_awaited(layer)
        return layer

    def build_from_config(self, config: Any) -> None:
        """Builds the original layer, then inserts its factors."""
        super().build_from_config(config)
        _insert_awaited(self)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Calls the layer. The first call may build it and insert the factors."""
        outputs = super().__call__(*args, **kwargs)
        _insert_awaited(self)
        return outputs


def why_not_inside(weight: Weight) -> str | None:
    """Returns why a kernel inside of a layer cannot be factorized, or `None`."""
    block, owner = weight.block, weight.owner
    is_ours = type(block).get_config.__module__.startswith("kerasmem.")
    if is_ours and type(block).get_config is not FactorizedBlock.get_config:
        return "is inside of a quantized layer; factorize first"
    layers = sublayers(block)
    if not any(owner is layer for layer in _without_factors(block)):
        return "is a factor already"
    if sum(weight.variable is v for one in layers for v in vars(one).values()) > 1:
        return "is stored in more than one layer"
    return "has LoRA" if has_lora(owner) else None


def factorize_inside(pairs: Iterable[tuple[Weight, Sequence[Any]]]) -> None:
    """Inserts factors into layers inside of blocks, in place.

    `pairs` contains kernels that `why_not_inside` accepts and their built factors.
    """
    blocks = {}
    for weight, layers in pairs:
        block = blocks.setdefault(id(weight.block), weight.block)
        if not isinstance(block, FactorizedBlock):
            _become_block(block, _serialized(block))
        forms = [keras.saving.serialize_keras_object(layer) for layer in layers]
        _insert(weight.owner, layers, forms)
    for block in blocks.values():
        forget_float_weights(sublayers(block))


def built_in_turn(layer: Layer, configs: Sequence[dict[str, Any]]) -> list[Any]:
    """Returns layers built in sequence, as a replacement for a built layer.

    `configs` contains their configs, all of the class of `layer`.
    """
    shape = layer.get_build_config()["input_shape"]
    thin_layers = []
    with named_beside(layer.kernel):
        for config in configs:
            thin_layers.append(type(layer).from_config(config))
            thin_layers[-1].build(shape)
            shape = thin_layers[-1].compute_output_shape(shape)
    return thin_layers


@contextmanager
def factorized_part(block: Layer, part: Any) -> Iterator[None]:
    """Allows saving a sublayer of a factorized model on its own within the scope.

    Does nothing if `block` is not a `FactorizedBlock`.
    """
    if part is block or not (isinstance(block, FactorizedBlock) and has_factors(part)):
        yield
        return
    with as_it_was(part):
        _become_block(part, _serialized(part))
        yield


def has_factors(layer: Layer) -> bool:
    """Returns whether a layer or one of its sublayers is factorized."""
    return any(_kernel_of(each) is not None for each in sublayers(layer))


def _serialized(layer: Layer) -> dict[str, Any]:
    form = keras.saving.serialize_keras_object(layer)
    # The outer config contains both.
    form.pop("build_config", None)
    form.pop("compile_config", None)
    return form


def _become_block(layer: Layer, form: dict[str, Any]) -> None:
    vars(layer)["_form_before"] = form
    _become(layer, FactorizedBlock)


def _without_factors(block: Layer) -> list[Any]:
    layers = sublayers(block)
    kernels = [kernel for one in layers if (kernel := _kernel_of(one)) is not None]
    factors = {id(factor) for kernel in kernels for factor in kernel.factors}
    return [layer for layer in layers if id(layer) not in factors]


def _insert_awaited(block: Layer) -> None:
    forms_by_owner = vars(block).get("_awaited")
    if not forms_by_owner:
        return
    owners = dict(enumerate(sublayers(block)))
    pairs = [(owners.get(int(n)), forms) for n, forms in forms_by_owner.items()]
    if any(owner is None or vars(owner).get("_kernel") is None for owner, _ in pairs):
        return
    vars(block)["_awaited"] = None
    for owner, forms in pairs:
        with named_beside(vars(owner)["_kernel"]):
            factors = [keras.saving.deserialize_keras_object(form) for form in forms]
        _check_fit(owner, factors)
        _insert(owner, factors, forms)
    forget_float_weights(sublayers(block))
    enable_lora_inside(block)


def _check_fit(owner: Any, layers: Sequence[Any]) -> None:
    symbols = [keras.KerasTensor(layer.kernel.shape) for layer in layers]
    try:
        shape = _product(symbols, getattr(owner, "equation", None)).shape
    except (TypeError, ValueError):
        shape = None
    if shape != tuple(owner.kernel.shape):
        raise ModelError(
            f"The factors of the layer {owner.name!r} do not fit its kernel. Expected: "
            f"a product of shape {tuple(owner.kernel.shape)}. Received: {shape}. Next: "
            "change the arguments of a model before km.Factorize."
        )


def _insert(owner: Any, layers: Sequence[Any], forms: Forms) -> None:
    kernel = owner._kernel
    product = FactorizedKernel(kernel, owner, layers, forms)
    exchange_weight(owner, "_kernel", kernel, product)
    with unlocked(owner):
        owner.factor_0, owner.factor_1 = layers[:2]
        if len(layers) > 2:
            owner.factor_2 = layers[2]
    _become(owner, FactorizedProduct)


def _kernel_of(layer: Layer) -> FactorizedKernel | None:
    kernel = getattr(layer, "_kernel", None)
    return kernel if isinstance(kernel, FactorizedKernel) else None


def _become(layer: Layer, form: type) -> None:
    become(layer, form, FactorizedBlock, f"Factorized{type(layer).__name__}")
