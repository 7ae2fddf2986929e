"""Layer classes for quantized weights: dequantization in calls, saving and loading."""

import math
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import keras

from kerasmem.compression.quantize.aware.quantizers import FakeQuantize
from kerasmem.compression.quantize.aware.weights import FakeQuantizedVariable
from kerasmem.compression.quantize.coded_products import (
    dynamic_product,
    float_product,
    rounded_inputs,
)
from kerasmem.compression.quantize.products import has_rows_of_outputs, is_product
from kerasmem.compression.quantize.variable import (
    QuantizedVariable,
    StandIn,
    own_stand_ins,
)
from kerasmem.graph.kernels import with_bias_and_activation
from kerasmem.graph.layers import sublayers
from kerasmem.graph.lora import has_lora, has_low_rank_product, low_rank_product
from kerasmem.graph.masks import with_mask
from kerasmem.types import Layer, Model, Tensors


class QuantizedReader(keras.layers.Layer):
    """A layer that dequantizes its weights only when its inputs exist."""

    def call(self, *args: Any, **kwargs: Any) -> Any:
        """Run the layer."""
        with ExitStack() as scopes:
            for value in own_stand_ins(self).values():
                scopes.enter_context(value.read_after(_first(args, kwargs)))
            return super().call(*args, **kwargs)

    def save_own_variables(self, store: Any) -> None:
        """Save the variables, with float weights under fake quantization."""
        with ExitStack() as scopes:
            for value in vars(self).values():
                if isinstance(value, FakeQuantizedVariable):
                    scopes.enter_context(value.floating())
            super().save_own_variables(store)


class QuantizedOwner(QuantizedReader):
    """A reader that replaces the save and load methods of its Keras class."""

    def save_own_variables(self, store: Any) -> None:
        """Save all variables in order, because Keras expects float kernels."""
        keras.layers.Layer.save_own_variables(self, store)

    def load_own_variables(self, store: Any) -> None:
        """Load the variables saved by `save_own_variables`."""
        keras.layers.Layer.load_own_variables(self, store)


class QuantizedProduct(QuantizedOwner):
    """A Dense, EinsumDense or convolution with blockwise or integer products."""

    def call(self, inputs: Tensors, *args: Any, **kwargs: Any) -> Any:
        """Run the layer, blockwise or with integers if possible."""
        kernel, lora = getattr(self, "_kernel", None), has_lora(self)
        if isinstance(kernel, FakeQuantizedVariable) and kernel.dynamic and not lora:
            inputs = rounded_inputs(self, inputs)
        if not isinstance(kernel, QuantizedVariable):
            return super().call(inputs, *args, **kwargs)
        if kernel.dynamic and not lora:
            outputs = dynamic_product(self, inputs, kernel)
        elif kernel.is_hoisted or (lora and not has_low_rank_product(self)):
            return super().call(inputs, *args, **kwargs)
        else:
            # Symbolic inputs have no gradient.
            is_symbol = isinstance(inputs, keras.KerasTensor)
            again = bool(kwargs.get("training")) and not is_symbol
            outputs = float_product(self, inputs, kernel, again=again)
        if lora:
            outputs = outputs + low_rank_product(self, inputs)
        return with_bias_and_activation(self, outputs)


class QuantizedEmbedding(QuantizedOwner):
    """An Embedding that dequantizes only the rows to look up."""

    def call(self, inputs: Tensors, *args: Any, **kwargs: Any) -> Any:
        """Return the rows at `inputs`, shape `(*inputs.shape, output_dim)`.

        With `reverse`, return logits of shape `(*inputs.shape[:-1], input_dim)`.
        """
        if has_lora(self):
            return super().call(inputs, *args, **kwargs)
        if kwargs.get("reverse") or any(args):
            return self._logits(inputs)
        if not isinstance(self._embeddings, StandIn):  # only the head has codes
            return super().call(inputs, *args, **kwargs)
        if keras.backend.standardize_dtype(inputs.dtype) not in ("int32", "int64"):
            inputs = keras.ops.cast(inputs, "int32")
        rows = self._embeddings.lookup(inputs)
        mask = keras.layers.Embedding.compute_mask(self, inputs)
        return rows if mask is None else with_mask(rows, mask)

    def _logits(self, inputs: Tensors) -> Any:
        is_tied = has_rows_of_outputs(self)
        table = self._embeddings if is_tied else self.reverse_embeddings
        is_coded = isinstance(table, QuantizedVariable) and table.has_parts(1 - is_tied)
        if not is_coded or self.reverse_dtype is not None:
            return super().call(inputs, reverse=True)
        training = getattr(self._get_call_context(), "training", None)
        # Symbolic inputs have no gradient.
        again = bool(training) and not isinstance(inputs, keras.KerasTensor)
        # Concatenating many logits would take more memory than the float table.
        rows = inputs.shape[:-1]
        few = None not in rows and math.prod(rows) <= self.output_dim
        logits = float_product(self, inputs, table, again=again, in_blocks=few)
        if self.logit_soft_cap is None:
            return logits
        return keras.ops.tanh(logits / self.logit_soft_cap) * self.logit_soft_cap


class QuantizedRecurrent(keras.layers.Layer):
    """A loop over time that dequantizes kernels once per call, not once per step."""

    def call(self, *args: Any, **kwargs: Any) -> Any:
        """Run the layer with float kernels."""
        with ExitStack() as scopes:
            for kernel in stand_ins(self):
                scopes.enter_context(kernel.read_once(_first(args, kwargs)))
            return super().call(*args, **kwargs)


OWNERS = (QuantizedReader, QuantizedRecurrent)
"""Base classes of all other classes for quantized weights."""

_LOOKUPS = (keras.layers.Embedding.call, keras.layers.ReversibleEmbedding.call)


def owner_form(layer: Layer) -> type:
    """Return the class that a layer with a quantized weight changes to."""
    if isinstance(layer, OWNERS):
        return QuantizedReader
    cls = type(layer)
    if cls.call in _LOOKUPS:
        return QuantizedEmbedding
    if is_product(layer):
        return QuantizedProduct
    return QuantizedOwner if saves_as_keras(layer) else QuantizedReader


def saves_as_keras(layer: Layer) -> bool:
    """Return whether a layer saves its variables with a method of Keras or kerasmem."""
    return type(layer).save_own_variables.__module__.startswith(("keras.", "kerasmem."))


def quantized_variables(layer: Layer) -> list[QuantizedVariable]:
    """Return the quantized weights of a layer or model without duplicates."""
    return [v for v in stand_ins(layer) if isinstance(v, QuantizedVariable)]


def stand_ins(layer: Layer) -> list[StandIn]:
    """Return the stand-ins of a layer or model without duplicates."""
    values = (v for each in sublayers(layer) for v in own_stand_ins(each).values())
    return list({id(v): v for v in values}.values())


def _first(args: tuple, kwargs: dict[str, Any]) -> Any | None:
    values = keras.tree.flatten((args, kwargs))
    return next((x for x in values if keras.ops.is_tensor(x)), None)


@contextmanager
def as_floats(model: Model) -> Iterator[None]:
    """Dequantize the weights of a float32 model to float32 once for the scope.

    No layer rounds inputs or splits products into blocks in the scope. Fake
    quantization with fixed ranges has no effect.
    """
    variables = quantized_variables(model)
    before = [(v._own_dtype, v.block_count, v.dynamic) for v in variables]
    quantizers = [
        layer
        for layer in sublayers(model)
        if isinstance(layer, FakeQuantize) and layer.fixed is not None
    ]
    for layer in quantizers:
        layer.passes = True
    for variable in variables:
        variable._own_dtype, variable.block_count = "float32", 1
        variable.dynamic = False
        variable.hoist()
    try:
        yield
    finally:
        for layer in quantizers:
            layer.passes = False
        for variable, settings in zip(variables, before, strict=True):
            variable._own_dtype, variable.block_count, variable.dynamic = settings
            variable.drop()
