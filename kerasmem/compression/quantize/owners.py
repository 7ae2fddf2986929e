"""What a layer does differently once some of its own weights are in fewer bits."""

from contextlib import ExitStack
from typing import Any

import keras

from kerasmem.compression.quantize.aware.rounding import round_symmetric
from kerasmem.compression.quantize.aware.weights import FakeQuantizedVariable
from kerasmem.compression.quantize.coding import Coded
from kerasmem.compression.quantize.math import LIMIT
from kerasmem.compression.quantize.products import (
    finished,
    has_lora,
    in_blocks,
    is_convolution,
    is_product,
    product,
)
from kerasmem.compression.quantize.rows import Rows
from kerasmem.compression.quantize.variable import QuantizedVariable, StandIn
from kerasmem.graph.kernels import einsum_parts
from kerasmem.graph.layers import sublayers
from kerasmem.graph.masks import with_mask


def dynamic_product(layer: Any, inputs: Any, kernel: QuantizedVariable) -> Any:
    """Return the layer's product of rounded inputs and the codes of its kernel.

    What is summed up together shares a scale: in a Dense or EinsumDense each vector
    that the kernel multiplies has its own, in a convolution each sample. The products
    of a Dense or EinsumDense are summed as int32, exactly. In a convolution integers
    are summed as float32, exactly too where a channel sums over at most 1,040 products,
    beyond to the rounding of float32.

    Args:
        layer: one of which `is_product` is true.
        inputs: float inputs of it.
        kernel: its kernel, symmetric int8 per channel or as a whole.
    """
    ops = keras.ops
    exact = ops.cast(inputs, "float32")
    largest = ops.max(ops.abs(exact), axis=summed_axes(layer, exact), keepdims=True)
    scales = ops.where(largest == 0, ops.ones_like(largest), largest / LIMIT)
    codes = ops.round(exact / scales)
    # No backend convolves int8 on every device.
    dtype = "float32" if is_convolution(layer) else "int8"
    codes = ops.cast(codes, dtype)

    def multiply(coded: Coded, _: Rows | None) -> Any:
        return product(layer, codes, ops.cast(coded.codes, dtype))

    total = in_blocks(layer, codes, kernel, multiply)
    both = _product_scales(layer, scales, kernel)
    return ops.cast(ops.cast(total, "float32") * both, layer.compute_dtype)


def rounded_inputs(layer: Any, inputs: Any) -> Any:
    """Return inputs of a product as `dynamic_product` rounds them, with a gradient.

    Args:
        layer: one of which `is_product` is true.
        inputs: float inputs of it.
    """
    axes = tuple(axis % len(inputs.shape) for axis in summed_axes(layer, inputs))
    exact = round_symmetric(keras.ops.cast(inputs, "float32"), axes)
    return keras.ops.cast(exact, inputs.dtype)


def _product_scales(layer: Any, scales: Any, kernel: QuantizedVariable) -> Any:
    """Return what the summed integers are multiplied by."""
    own = kernel.scales.value
    if is_convolution(layer):
        if layer.data_format == "channels_first":
            own = keras.ops.reshape(own, (1, -1, *[1] * layer.rank))
        return scales * own
    # Scales have length 1 along what is summed over: a sum of one product.
    axes = kernel.coding.axes
    shape = [1 if axis in axes else n for axis, n in enumerate(kernel.shape)]
    return product(layer, scales, keras.ops.broadcast_to(own, shape))


def summed_axes(layer: Any, inputs: Any) -> tuple[int, ...]:
    """Return the axes of a layer's inputs that share a scale."""
    if is_convolution(layer):
        return tuple(range(1, len(inputs.shape)))
    if not isinstance(layer, keras.layers.EinsumDense):
        return (-1,)
    taken, _, output = einsum_parts(layer.equation)
    # From the end: where there are dots, the number of axes before is open.
    given = taken.replace("...", ".")[::-1]
    return tuple(
        -1 - place
        for place, letter in enumerate(given)
        if letter != "." and letter not in output
    )


class QuantizedReader(keras.layers.Layer):
    """A layer that makes its weights float when its inputs are there, not before."""

    def call(self, *args: Any, **kwargs: Any) -> Any:
        """Run the layer."""
        with ExitStack() as scopes:
            for value in vars(self).values():
                if isinstance(value, StandIn):
                    scopes.enter_context(value.made_after(_first(args, kwargs)))
            return super().call(*args, **kwargs)

    def save_own_variables(self, store: Any) -> None:
        """Save the layer in its own way: the float weight where it still is."""
        with ExitStack() as scopes:
            for value in vars(self).values():
                if isinstance(value, FakeQuantizedVariable):
                    scopes.enter_context(value.floating())
            super().save_own_variables(store)


class QuantizedOwner(QuantizedReader):
    """A reader whose weights Keras would look for under its own names."""

    def save_own_variables(self, store: Any) -> None:
        """Save all own variables in order: Dense and others look for float kernels."""
        keras.layers.Layer.save_own_variables(self, store)

    def load_own_variables(self, store: Any) -> None:
        """Load what `save_own_variables` saved."""
        keras.layers.Layer.load_own_variables(self, store)


class QuantizedProduct(QuantizedOwner):
    """A Dense, EinsumDense or convolution: in blocks, or integers by integers."""

    def call(self, inputs: Any, *args: Any, **kwargs: Any) -> Any:
        """Multiply block by block, or integers by integers; else as ever."""
        kernel = vars(self).get("_kernel")
        if isinstance(kernel, FakeQuantizedVariable):
            if kernel.dynamic and not has_lora(self):
                inputs = rounded_inputs(self, inputs)
        elif isinstance(kernel, QuantizedVariable) and not has_lora(self):
            if kernel.dynamic:
                return finished(self, dynamic_product(self, inputs, kernel))
            if kernel.block_count > 1:
                outputs = in_blocks(
                    self,
                    inputs,
                    kernel,
                    lambda *part: product(self, inputs, kernel.decoded(*part)),
                )
                return finished(self, outputs)
        return super().call(inputs, *args, **kwargs)


class QuantizedEmbedding(QuantizedOwner):
    """An Embedding that makes float only the rows that are looked up."""

    def call(self, inputs: Any, *args: Any, **kwargs: Any) -> Any:
        """Return the rows at `inputs`, shape `(*inputs.shape, output_dim)`."""
        if args or kwargs.get("reverse") or has_lora(self):
            return super().call(inputs, *args, **kwargs)
        if keras.backend.standardize_dtype(inputs.dtype) not in ("int32", "int64"):
            inputs = keras.ops.cast(inputs, "int32")
        rows = self._embeddings.lookup(inputs)
        mask = keras.layers.Embedding.compute_mask(self, inputs)
        return rows if mask is None else with_mask(rows, mask)


class QuantizedRecurrent(keras.layers.Layer):
    """A loop over time that makes kernels float once a call, not once a step."""

    def call(self, *args: Any, **kwargs: Any) -> Any:
        """Run the layer with the float kernels at hand."""
        with ExitStack() as scopes:
            for kernel in stand_ins(self):
                scopes.enter_context(kernel.made_once(_first(args, kwargs)))
            return super().call(*args, **kwargs)


OWNERS = (QuantizedReader, QuantizedRecurrent)
"""The forms that all others are made of."""

_LOOKUPS = (keras.layers.Embedding.call, keras.layers.ReversibleEmbedding.call)


def owner_form(layer: Any) -> type:
    """Return what a layer becomes that keeps a quantized weight."""
    if isinstance(layer, OWNERS):
        return QuantizedReader
    cls = type(layer)
    if cls.call in _LOOKUPS:
        return QuantizedEmbedding
    if is_product(layer):
        return QuantizedProduct
    return QuantizedOwner if saves_as_keras(layer) else QuantizedReader


def saves_as_keras(layer: Any) -> bool:
    """Return False for a layer that saves itself in a way of its own."""
    return type(layer).save_own_variables.__module__.startswith(("keras.", "kerasmem."))


def quantized_variables(layer: Any) -> list[QuantizedVariable]:
    """Return the quantized weights of a layer or model, each once."""
    return [v for v in stand_ins(layer) if isinstance(v, QuantizedVariable)]


def stand_ins(layer: Any) -> list[StandIn]:
    """Return what stands for weights of a layer or model, each once."""
    values = (v for inner in sublayers(layer) for v in vars(inner).values())
    found = {id(v): v for v in values if isinstance(v, StandIn)}
    return list(found.values())


def _first(args: tuple, kwargs: dict[str, Any]) -> Any | None:
    """Return the first tensor among the arguments of a call."""
    given = keras.tree.flatten((args, kwargs))
    return next((x for x in given if keras.ops.is_tensor(x)), None)
