"""Thin layers inside of the layer whose kernel they replace, where no graph takes them.

A layer inside of another one, of a subclassed model or of a model of KerasHub, stays
where it is, with its name and its bias. Its class changes to one that calls the factors
in turn, which are ordinary layers within it: other techniques find their kernels there.
The block that a model's config knows is saved as `kerasmem>FactorizedLayer` with its
own config inside. Loaded, it first becomes what it was, is built as Keras builds it,
and then gets its factors.
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
"""Thin layers as Keras serializes them, the first to the last."""


class FactorizedKernel(ComputedVariable):
    """Reads as the product of the kernels of thin layers.

    Args:
        origin: the kernel that is replaced.
        owner: its layer.
        factors: the thin layers, built.
        forms: they, serialized.
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
        """The kernel, a fresh tensor."""
        return _product([each.kernel for each in self.factors], self._equation)

    def assign(self, value: Any) -> Any:
        """Refuse: there is no one way to make factors of a value.

        Raises:
            ModelError: always.
        """
        names = " and ".join(factor.kernel.path for factor in self.factors)
        raise ModelError(
            f"The kernel {self.path!r} is a product of factors and takes no value. "
            f"Next: assign to {names}. Received: a value of shape {np.shape(value)}."
        )

    dtype = property(lambda self: self._own_dtype)

    @property
    def trainable(self) -> bool:
        """Whether the factors are trained; LoRA, which adds to it, freezes them."""
        return any(factor._kernel.trainable for factor in self.factors)

    @trainable.setter
    def trainable(self, value: bool) -> None:
        for factor in self.factors:
            factor._kernel.trainable = value


def _product(kernels: Sequence[Any], equation: str | None) -> Any:
    if equation is None:
        return functools.reduce(keras.ops.matmul, kernels)
    first, last = kernels
    axes = np.argsort(summed_and_new(equation)).tolist()
    return keras.ops.transpose(keras.ops.tensordot(first, last, 1), axes)


def summed_and_new(equation: str) -> list[int]:
    """Return the axes of an EinsumDense's kernel, first those that are summed over."""
    _, kernel, output = einsum_parts(equation)
    axes = range(len(kernel))
    return sorted(axes, key=lambda axis: (kernel[axis] in output, axis))


class FactorizedProduct(keras.layers.Layer):
    """A Dense, EinsumDense or convolution that calls its factors in turn."""

    def call(self, inputs: Tensors, *args: Any, **kwargs: Any) -> Any:
        """Multiply with each factor; with LoRA with the product of them all."""
        if has_lora(self):
            return super().call(inputs, *args, **kwargs)
        for factor in self._kernel.factors:
            inputs = factor(inputs)
        return with_bias_and_activation(self, inputs)

    def save_own_variables(self, store: Any) -> None:
        """Save all own variables in order: Dense and others look for a kernel."""
        keras.layers.Layer.save_own_variables(self, store)

    def load_own_variables(self, store: Any) -> None:
        """Load what `save_own_variables` saved."""
        keras.layers.Layer.load_own_variables(self, store)


@keras.saving.register_keras_serializable("kerasmem", "FactorizedLayer")
class FactorizedBlock(keras.layers.Layer):
    """A layer of a model's config with factors inside; see `factorize_inside`."""

    def get_config(self) -> dict[str, Any]:
        """Return the serialized form that it had, its factors and LoRA inside."""
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
        """Return the layer of a config, with factors as soon as it is built."""
        layer = layer_before(config)
        _become_block(layer, config["layer"])
        vars(layer)["_awaited"] = config["factors"]
        _insert_awaited(layer)
        return layer

    def build_from_config(self, config: Any) -> None:
        """Build the layer as it was, then give it its factors."""
        super().build_from_config(config)
        _insert_awaited(self)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Call the layer, which may build it; then give it factors that it awaits."""
        outputs = super().__call__(*args, **kwargs)
        _insert_awaited(self)
        return outputs


def why_not_inside(weight: Weight) -> str | None:
    """Return why a kernel inside of a layer has no factors there, None if it may."""
    block, owner = weight.block, weight.owner
    is_ours = type(block).get_config.__module__.startswith("kerasmem.")
    if is_ours and type(block).get_config is not FactorizedBlock.get_config:
        return "is inside of a layer with codes, which come after factors"
    layers = sublayers(block)
    if not any(owner is layer for layer in _without_factors(block)):
        return "is a factor already"
    if sum(weight.variable is v for one in layers for v in vars(one).values()) > 1:
        return "is kept by more than one layer"
    return "has LoRA beside it" if has_lora(owner) else None


def factorize_inside(pairs: Iterable[tuple[Weight, Sequence[Any]]]) -> None:
    """Give layers inside of blocks their factors, in place.

    Args:
        pairs: a kernel of which `why_not_inside` told nothing, and the thin layers in
            its place, built, with their values.
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
    """Return thin layers for the place of a built one, built behind one another.

    Args:
        layer: it.
        configs: of layers of its class, the first to the last.
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
    """Let a model within a factorized one be saved by itself, while the scope is open.

    Args:
        block: a model; where it is no `FactorizedBlock`, nothing is done.
        part: one of its `sublayers`, such as the backbone of a task.
    """
    if part is block or not (isinstance(block, FactorizedBlock) and has_factors(part)):
        yield
        return
    with as_it_was(part):
        _become_block(part, _serialized(part))
        yield


def has_factors(layer: Layer) -> bool:
    """Return whether a layer or one inside of it has factors in it."""
    return any(_kernel_of(each) is not None for each in sublayers(layer))


def _serialized(layer: Layer) -> dict[str, Any]:
    form = keras.saving.serialize_keras_object(layer)
    # Both are told again by the form around this one.
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
            f"a product of the shape {tuple(owner.kernel.shape)}. Received: {shape}. "
            "Next: change the arguments of a model before km.Factorize."
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
