"""Layers of int8-static models saved by earlier versions of kerasmem.

In the original models, tensors between layers were int8 codes. Here, each layer
dequantizes its inputs, computes in float, and quantizes its output. Results differ by
at most one step from the original integer arithmetic.
"""

import math
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any

import keras

from kerasmem.types import Tensor, Tensors

LEAST, MOST = -128, 127
_ops = keras.ops
_NEARLY_HALF = 2.0**-12
"""Values almost half a step away are rounded away from zero, as in the integer code."""
_ACTIVATIONS = {"relu": _ops.relu, "relu6": _ops.relu6}
_FUNCTIONS = {"sigmoid": _ops.sigmoid, "tanh": _ops.tanh}


class CodesLayer(keras.layers.Layer):
    """Layer with int8 inputs and outputs.

    Args:
        inputs: Scale and zero point of each input. Empty for float inputs.
        output: Scale and zero point of the output, or None for a float output.
        activation: `"relu"`, `"relu6"` or None.
        keeps_mask: Whether the output has the mask of the inputs.
        kwargs: Other arguments of the layer, by their names in the file.
    """

    own: Mapping[str, Any] = MappingProxyType({})

    def __init__(
        self,
        inputs: Tensors,
        output: Tensor,
        activation: str | None = None,
        *,
        keeps_mask: bool = True,
        **kwargs: Any,
    ) -> None:
        values = {name: kwargs.pop(name, value) for name, value in self.own.items()}
        super().__init__(**kwargs)
        self.supports_masking = True
        self.arguments = {"inputs": inputs, "output": output, "activation": activation}
        self.arguments |= {"keeps_mask": keeps_mask, **values}

    def get_config(self) -> dict[str, Any]:
        """Return the arguments of the constructor."""
        return {**super().get_config(), **self.arguments}

    def compute_mask(self, inputs: Tensors, previous_mask: Any) -> Any:
        """Return the mask of the output."""
        masks = previous_mask if isinstance(inputs, list) else [previous_mask]
        if not self.arguments["keeps_mask"] or any(mask is None for mask in masks):
            return None
        return _ops.logical_or(*masks) if len(masks) > 1 else masks[0]

    def call(self, inputs: Tensors, mask: Tensor = None) -> Any:
        """Return the output as int8 codes or floats."""
        tensors = inputs if isinstance(inputs, list) else [inputs]
        codes = self.arguments["inputs"] or [None] * len(tensors)
        floats = [_decoded(x, of) for x, of in zip(tensors, codes, strict=True)]
        if isinstance(mask, list):
            floats = self.shown(floats, mask)
        outputs = self.compute(*floats)
        activation = _ACTIVATIONS.get(self.arguments["activation"])
        outputs = outputs if activation is None else activation(outputs)
        if self.gives_floats:
            return outputs
        takes_floats = not self.arguments["inputs"]
        return _encoded(outputs, self.output_codes, even=takes_floats)

    @property
    def output_codes(self) -> Any:
        """Scale and zero point of the output."""
        return self.arguments["output"]

    @property
    def all_codes(self) -> list[Any]:
        """Scales and zero points of the inputs and the output."""
        return [*self.arguments["inputs"], self.output_codes]

    @property
    def gives_floats(self) -> bool:
        """Whether the output is float."""
        return self.output_codes is None or isinstance(self, FromCodes)

    def compute(self, *floats: Any) -> Any:
        """Return the float output before the activation."""
        return floats[0]

    def shown(self, floats: list[Any], masks: list[Any]) -> list[Any]:
        """Apply the masks of several inputs."""
        del masks
        return floats


def _decoded(x: Tensor, codes: Tensor) -> Any:
    x = _ops.cast(x, "float32")
    return x if codes is None else (x - codes["zero_point"]) * codes["scale"]


def _encoded(x: Tensor, codes: Tensor, *, even: bool) -> Any:
    zero = codes["zero_point"]
    steps = x / codes["scale"]
    if not even:
        steps = _ops.sign(steps) * _ops.floor(_ops.abs(steps) + (0.5 + _NEARLY_HALF))
    steps = _ops.round(steps)
    steps = _ops.clip(steps, LEAST - zero, MOST - zero)
    return _ops.cast(steps + zero, "int8")


def _in_parts(x: Tensor, step: float, exponent: Any) -> Any:
    """Round to a fraction of a step, because the integer code rounded twice."""
    parts = 2.0 ** _ops.maximum(-_ops.cast(exponent, "float32"), 0.0)
    return _ops.round(x * (parts / step)) * (step / parts)


def _exponent(ratio: float) -> int:
    return math.frexp(ratio)[1]


class CodesProduct(CodesLayer):
    """Layer with an int8 kernel and an int32 bias."""

    own = MappingProxyType({"kernel_shape": ()})
    channel_axes = 1
    rounds_twice = True

    def build(self, input_shape: Any) -> None:
        """Create the variables in the order of the file."""
        del input_shape
        shape = self.arguments["kernel_shape"]
        channels = (math.prod(shape[-self.channel_axes :]),)
        self.kernel = self._variable("kernel", "int8", shape)
        self.bias = self._variable("bias", "int32", channels)
        self.kernel_scale = self._variable("kernel_scale", "float32", channels)
        if not self.gives_floats:  # factors of the original integer arithmetic
            self._variable("mantissa", "int32", channels)
            self.exponent = self._variable("exponent", "int8", channels)

    def compute(self, *floats: Any) -> Any:
        """Return the matrix product with the kernel, plus the bias."""
        scales = _ops.convert_to_tensor(self.kernel_scale)
        shape = self.arguments["kernel_shape"][-self.channel_axes :]
        kernel = _ops.cast(self.kernel, "float32") * _ops.reshape(scales, shape)
        step = scales * self.arguments["inputs"][0]["scale"]
        sums = self.product(floats[0], kernel) + _ops.cast(self.bias, "float32") * step
        if self.gives_floats or not self.rounds_twice:
            return sums
        return _in_parts(sums, self.output_codes["scale"], self.exponent)

    def product(self, x: Tensor, kernel: Tensor) -> Any:
        """Return the matrix product with the kernel."""
        return _ops.matmul(x, kernel)

    def _variable(self, name: str, dtype: str, shape: Any) -> Any:
        return self.add_weight(
            shape, "zeros", dtype=dtype, trainable=False, autocast=False, name=name
        )


class CodesConvolution(CodesProduct):
    """Quantized convolution with channels last."""

    own = MappingProxyType(
        {"kernel_shape": (), "strides": (), "padding": "valid", "dilation_rate": ()}
    )
    convolve: Callable[..., Any] = staticmethod(_ops.conv)

    def product(self, x: Tensor, kernel: Tensor) -> Any:
        """Return the convolution with the kernel."""
        own = {name: self.arguments[name] for name in ("strides", "dilation_rate")}
        own = {name: tuple(value) for name, value in own.items()}
        padding = self.arguments["padding"]
        if padding == "causal":
            before = own["dilation_rate"][0] * (kernel.shape[0] - 1)
            x, padding = _ops.pad(x, [(0, 0), (before, 0), (0, 0)]), "valid"
        form = {"data_format": "channels_last", "padding": padding}
        return self.convolve(x, kernel, **own, **form)


class CodesDepthwise(CodesConvolution):
    """Quantized depthwise convolution."""

    channel_axes = 2
    convolve = staticmethod(_ops.depthwise_conv)


class CodesDense(CodesProduct):
    """Quantized Dense layer."""

    rounds_twice = False


class CodesAffine(CodesProduct):
    """Factor and offset for each channel."""

    def product(self, x: Tensor, kernel: Tensor) -> Any:
        """Multiply by the factors."""
        return x * kernel


class CodesMultiply(CodesLayer):
    """Product of two tensors. With `hides`, masked factors are ignored."""

    own = MappingProxyType({"hides": False})

    def compute(self, *floats: Any) -> Any:
        """Return the product."""
        one, two, step = (codes["scale"] for codes in self.all_codes)
        return _in_parts(_ops.multiply(*floats), step, _exponent(one * two / step))

    def shown(self, floats: list[Any], masks: list[Any]) -> list[Any]:
        """Replace a masked factor by 1, or by 0 if both factors are masked."""
        if not self.arguments["hides"]:
            return floats
        one, two = (
            _ops.ones_like(x[..., :1], dtype="bool") if m is None else m[..., None]
            for x, m in zip(floats, masks, strict=True)
        )
        hidden = _ops.where(_ops.logical_or(one, two), 1.0, 0.0)
        return [
            _ops.where(m, x, hidden) for x, m in zip(floats, (one, two), strict=True)
        ]


class CodesReLU(CodesLayer):
    """Leaky ReLU that rounds to a fraction of a step first."""

    own = MappingProxyType({"slope": 1.0})

    def compute(self, *floats: Any) -> Any:
        """Multiply negative inputs by the slope."""
        (x,), (scale, step) = floats, (codes["scale"] for codes in self.all_codes)

        def times(factor: float) -> Any:
            return _in_parts(factor * x, step, _exponent(factor * scale / step))

        return _ops.where(x >= 0, times(1.0), times(self.arguments["slope"]))


class CodesPooling(CodesLayer):
    """Pooling layer with channels last."""

    own = MappingProxyType({"pool_size": (), "strides": (), "padding": "valid"})
    pool: Callable[..., Any] = staticmethod(_ops.max_pool)

    def compute(self, *floats: Any) -> Any:
        """Return the pooled tensor."""
        size, strides = (tuple(self.arguments[n]) for n in ("pool_size", "strides"))
        padding = self.arguments["padding"]
        return self.pool(*floats, size, strides, padding, "channels_last")


class CodesAveragePooling(CodesPooling):
    """Average pooling layer."""

    pool = staticmethod(_ops.average_pool)

    def compute(self, *floats: Any) -> Any:
        """Return the averages. Half steps are rounded away from code 0."""
        averages, codes = super().compute(*floats), self.output_codes
        side = _ops.sign(averages / codes["scale"] + codes["zero_point"])
        return averages + side * (2 * _NEARLY_HALF * codes["scale"])


@keras.saving.register_keras_serializable("kerasmem")
class Gate(keras.layers.Layer):
    """Product of two float tensors with the mask of the first."""

    def call(self, inputs: Tensors) -> Any:
        """Return the product."""
        return _ops.multiply(*inputs)

    def compute_mask(self, inputs: Tensors, previous_mask: Any) -> Any:
        """Return the mask of the first input."""
        del inputs
        return previous_mask[0] if self.supports_masking else None


@keras.saving.register_keras_serializable("kerasmem")
class FromCodes(CodesLayer):
    """Layer with int8 inputs and float outputs."""


def _layer(
    name: str,
    base: type = CodesLayer,
    compute: Callable[..., Any] | None = None,
    **own: Any,
) -> None:
    """Register a layer class under its name in files.

    `compute` replaces the `compute` method of the base class. Its arguments are the
    float inputs and the layer arguments in `own`.
    """
    members: dict[str, Any] = {"__module__": __name__}
    if compute is not None:
        members["own"] = MappingProxyType(own)
        members["compute"] = lambda self, *floats: compute(
            *floats, *map(self.arguments.get, own)
        )
    layer_class = type(name, (base,), members)
    keras.saving.register_keras_serializable("kerasmem")(layer_class)


_layer("ToCodes", compute=lambda x, _: x, warns=False)
for _dimensions in "12":
    _layer(f"IntegerConv{_dimensions}D", CodesConvolution)
    _layer(f"IntegerDepthwiseConv{_dimensions}D", CodesDepthwise)
_layer("IntegerDense", CodesDense)
_layer("IntegerAffine", CodesAffine)
_layer("IntegerAdd", compute=_ops.add)
_layer("IntegerMultiply", CodesMultiply)
_layer("IntegerReLU", CodesReLU)
_layer("IntegerLeakyReLU", CodesReLU)
_layer("IntegerHardSilu", compute=_ops.hard_silu)
_layer("IntegerTable", compute=lambda x, name: _FUNCTIONS[name](x), function="")
_layer(
    "IntegerMean", compute=lambda x, keep: _ops.mean(x, (1, 2), keep), keepdims=False
)
_layer("IntegerMaxPooling", CodesPooling)
_layer("IntegerAveragePooling", CodesAveragePooling)
_layer("IntegerPadding", compute=_ops.pad, pads=())
