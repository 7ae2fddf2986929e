"""What a layer computes once some of its own weights are in fewer bits.

Dense, EinsumDense and convolutions are taken apart: product, bias, activation. They
multiply in blocks, or integers by integers, the inputs rounded anew in every call.

Source: Krishnamoorthi, "Quantizing deep convolutional networks for efficient inference:
A whitepaper", 2018.
"""

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import keras

from kerasmem.compression.quantize.aware.rounding import round_symmetric
from kerasmem.compression.quantize.aware.weights import FakeQuantizedVariable
from kerasmem.compression.quantize.coding import Coded, Rows
from kerasmem.compression.quantize.math import LIMIT
from kerasmem.compression.quantize.variable import QuantizedVariable, StandIn
from kerasmem.graph.kernels import einsum_parts
from kerasmem.graph.layers import sublayers
from kerasmem.graph.masks import with_mask

_CONVOLUTIONS = (keras.layers.Conv1D, keras.layers.Conv2D, keras.layers.Conv3D)
_CALLS = (
    keras.layers.Dense.call,
    keras.layers.EinsumDense.call,
    *(cls.call for cls in _CONVOLUTIONS),
)


def is_product(layer: Any) -> bool:
    """Return True for Dense, EinsumDense and convolutions that compute as Keras's do.

    Others, such as a subclass with a `call` of its own, cannot be taken apart.
    """
    return type(layer).call in _CALLS


def has_lora(layer: Any) -> bool:
    """Return True for a layer that adds something to its kernel."""
    return getattr(layer, "lora_enabled", False)


def product(layer: Any, inputs: Any, kernel: Any) -> Any:
    """Return what the layer makes of its inputs with `kernel`, without the bias.

    Args:
        layer: one of which `is_product` was true.
        inputs: its inputs.
        kernel: a tensor: its kernel, or some output channels of it.
    """
    if isinstance(layer, _CONVOLUTIONS):
        return _convolved(layer, inputs, kernel)
    if isinstance(layer, keras.layers.EinsumDense):
        return keras.ops.einsum(layer.equation, inputs, kernel)
    return keras.ops.matmul(inputs, kernel)


def _convolved(layer: Any, inputs: Any, kernel: Any) -> Any:
    if layer.padding != "causal":
        return layer.convolution_op(inputs, kernel)
    # As `keras.layers.Conv1D.call` does: the convolution itself knows no such padding.
    widths = [(0, 0)] * 3
    steps = 2 if layer.data_format == "channels_first" else 1
    widths[steps] = (layer.dilation_rate[0] * (layer.kernel_size[0] - 1), 0)
    return keras.ops.conv(
        keras.ops.pad(inputs, widths),
        kernel,
        strides=list(layer.strides),
        padding="valid",
        dilation_rate=layer.dilation_rate,
        data_format=layer.data_format,
    )


def with_bias_and_activation(layer: Any, outputs: Any) -> Any:
    """Return the layer's outputs: bias and activation added to its product."""
    if layer.bias is not None:
        outputs = keras.ops.add(outputs, _by_channel(layer, layer.bias))
    return outputs if layer.activation is None else layer.activation(outputs)


def _by_channel(layer: Any, values: Any) -> Any:
    """Return one number per channel, or a bias, broadcast against a layer's outputs."""
    if getattr(layer, "data_format", None) != "channels_first":
        return values
    return keras.ops.reshape(values, (1, -1, *[1] * layer.rank))


def is_convolution(layer: Any) -> bool:
    """Return True for a convolution that is neither depthwise nor transposed."""
    return isinstance(layer, _CONVOLUTIONS)


def block_axes(layer: Any) -> tuple[int, int] | None:
    """Return the axis of the kernel to cut along, and that of the output.

    None where it cannot be cut: the channels of a grouped convolution are not free.
    """
    if isinstance(layer, _CONVOLUTIONS):
        first = layer.data_format == "channels_first"
        return None if layer.groups > 1 else (layer.rank + 1, 1 if first else -1)
    if not isinstance(layer, keras.layers.EinsumDense):
        return 1, -1
    given, kernel, output = einsum_parts(layer.equation)
    axes = [
        # From the end: where there are dots, the number of axes before is open.
        (axis, -1 - output[::-1].index(letter))
        for axis, letter in enumerate(kernel)
        if letter in output and letter not in given
    ]
    return max(axes, key=lambda pair: layer.kernel.shape[pair[0]], default=None)


def in_blocks(
    layer: Any,
    inputs: Any,
    kernel: QuantizedVariable,
    multiply: Callable[[Coded, Rows | None], Any],
) -> Any:
    """Return the layer's product with a kernel, one block of output channels at a time.

    Args:
        layer: one of which `is_product` is true.
        inputs: its inputs; no block is begun before they are there.
        kernel: its kernel.
        multiply: returns the product with some output channels of the kernel, given as
            tensors.
    """
    axes = block_axes(layer)
    if kernel.block_count == 1 or axes is None:
        return multiply(*kernel.tensors(inputs))
    axis, place = axes
    outputs = []
    for start, stop in _cuts(kernel.shape[axis], kernel.block_count):
        before = outputs[-1] if outputs else inputs
        outputs.append(multiply(*kernel.tensors(before, (axis, start, stop))))
    return keras.ops.concatenate(outputs, axis=place)


def _cuts(length: int, count: int) -> Iterator[tuple[int, int]]:
    size = -(-length // count)
    return ((start, min(start + size, length)) for start in range(0, length, size))


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


def is_scaled_after(layer: Any, kernel: QuantizedVariable) -> bool:
    """Return whether what a layer's codes give is scaled, and not the codes.

    That is cheaper where outputs are fewer than weights, as in a Dense. In 16 bits the
    float weight is rounded: what `dequantize` gives has to answer alike.
    """
    coding = kernel.coding
    return (
        not is_convolution(layer)
        and layer.compute_dtype == "float32"
        and coding.bits == 8
        and coding.symmetric
        and coding.granularity != "group"
        and not kernel.is_hoisted
    )


def scaled_product(layer: Any, inputs: Any, kernel: QuantizedVariable) -> Any:
    """Return the layer's product of its inputs and the codes, each output scaled.

    Args:
        layer: one of which `is_scaled_after` is true.
        inputs: float32 inputs of it.
        kernel: its kernel.
    """
    ops = keras.ops

    def multiply(coded: Coded, _: Rows | None) -> Any:
        return product(layer, inputs, ops.cast(coded.codes, "float32"))

    total = in_blocks(layer, inputs, kernel, multiply)
    ones = ops.ones(_unit(layer, inputs, kernel), "float32")
    return total * _product_scales(layer, ones, kernel)


def _unit(layer: Any, inputs: Any, kernel: QuantizedVariable) -> tuple[int, ...]:
    """Return the least shape of inputs that multiplies the scales of a kernel."""
    rank = len(inputs.shape)
    if not isinstance(layer, keras.layers.EinsumDense):
        return (1,) * rank
    given, own, _ = einsum_parts(layer.equation)
    summed = kernel.coding.axes
    sizes = {own[i]: n for i, n in enumerate(kernel.shape) if i not in summed}
    letters = given.replace("...", "." * (rank - len(given.replace("...", ""))))
    return tuple(sizes.get(letter, 1) for letter in letters)


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
        return scales * _by_channel(layer, own)
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
                    scopes.enter_context(value.read_after(_first(args, kwargs)))
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
        kernel = None if has_lora(self) else vars(self).get("_kernel")
        if isinstance(kernel, FakeQuantizedVariable) and kernel.dynamic:
            inputs = rounded_inputs(self, inputs)
        if not isinstance(kernel, QuantizedVariable):
            return super().call(inputs, *args, **kwargs)
        if kernel.dynamic:
            outputs = dynamic_product(self, inputs, kernel)
        elif is_scaled_after(self, kernel):
            outputs = scaled_product(self, inputs, kernel)
        elif kernel.block_count > 1:

            def multiply(*part: Any) -> Any:
                return product(self, inputs, kernel.decoded(*part))

            outputs = in_blocks(self, inputs, kernel, multiply)
        else:
            return super().call(inputs, *args, **kwargs)
        return with_bias_and_activation(self, outputs)


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
                scopes.enter_context(kernel.read_once(_first(args, kwargs)))
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


@contextmanager
def as_floats(model: Any) -> Iterator[None]:
    """Keep the weights of `model` as float32, made once, within the scope.

    No layer rounds its inputs or multiplies in blocks there.

    Args:
        model: a built model that computes in float32.
    """
    variables = quantized_variables(model)
    before = [(v._own_dtype, v.block_count, v.dynamic) for v in variables]
    for variable in variables:
        variable._own_dtype, variable.block_count = "float32", 1
        variable.dynamic = False
        variable.hoist()
    try:
        yield
    finally:
        for variable, kept in zip(variables, before, strict=True):
            variable._own_dtype, variable.block_count, variable.dynamic = kept
            variable.drop()
