"""Fake quantization of activations, between layers and inside layers."""

from collections.abc import Sequence
from typing import Any

import keras
import numpy as np

from kerasmem.compression.quantize.activations import with_zero
from kerasmem.compression.quantize.aware.rounding import (
    LEAST,
    nudged,
    round_by_steps,
    round_to_range,
)
from kerasmem.graph.kernels import with_bias_and_activation
from kerasmem.graph.layer_table import entry_of
from kerasmem.graph.values import represents, to_numpy
from kerasmem.types import Layer, Tensor, Tensors

_FIRST, _LAST = 0, 255


@keras.saving.register_keras_serializable("kerasmem")
class FakeQuantize(keras.layers.Layer):
    """Rounds inputs to the 256 codes of a range.

    With `ends`, the range is fixed and the layer has no weights. Otherwise it follows
    the inputs in training and is constant in inference. It starts with the range of the
    first batch that is not all zero. Before that, each batch uses its own range. Zero
    always has an exact code. In float32, the moving average equals
    `MovingAverageQuantizer` of tensorflow-model-optimization to the bit.

    Args:
        decay: Float in [0, 1). Weight of earlier batches in the moving average.
        learned: Whether training scales the first range by `1 + change` instead. The
            code of zero does not change.
        tensors: Names of the tensors with this range in the float model.
        ends: Lower and upper end of a fixed range.

    Attributes:
        range: Lower and upper end, float32, shape `(2,)`, averaged over replicas. Both
            are 0 while all inputs have been zero. None for a fixed range.
        change: Trained relative change of the width, shape `()`, or None.
        fixed: Ends of a fixed range, or None.
        passes: Whether to return inputs unchanged, as for a float file.
    """

    def __init__(
        self,
        *,
        decay: float = 0.99,
        learned: bool = False,
        tensors: Sequence[str] = (),
        ends: Sequence[float] | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(autocast=False, **{"dtype": "float32", **kwargs})
        self.supports_masking = True
        self.decay, self.learned = decay, learned
        self.tensors = list(tensors)
        self.fixed = None if ends is None else (float(ends[0]), float(ends[1]))
        self.passes = False
        self.range: Any = None
        self.change: Any = None
        if ends is None:
            self._add_weights()
        self.built = True

    def _add_weights(self) -> None:
        self.range = self.add_weight(
            (2,),
            "zeros",
            trainable=False,
            autocast=False,
            aggregation="mean",
            name="range",
        )
        represents(self.range, None)
        if self.learned:
            self.change = self.add_weight((), "zeros", autocast=False, name="change")
            represents(self.change, None)

    @property
    def ends(self) -> tuple[float, float] | None:
        """Current range. None while all inputs have been zero."""
        if self.fixed is not None:
            return self.fixed
        low, high = to_numpy(self.range).tolist()
        factor = 1.0
        if self.change is not None:
            factor = max(1.0 + float(to_numpy(self.change)), LEAST)
        return with_zero(low * factor, high * factor) if low < high else None

    def compute_output_spec(self, inputs: Tensors, training: Any = None) -> Any:
        """Return the shape and dtype of the inputs."""
        del training
        return keras.KerasTensor(inputs.shape, dtype=inputs.dtype)

    def call(self, inputs: Tensors, training: Any = None) -> Any:
        """Return the rounded inputs in their own dtype."""
        if self.passes:
            return inputs
        ops = keras.ops
        if self.fixed is not None:
            ends = ops.convert_to_tensor(self.fixed, "float32")
            return round_to_range(inputs, *ops.unstack(ends, 2))
        before = now = ops.convert_to_tensor(self.range)
        batch_range = self._seen(inputs)
        if training and not self.learned:
            now = before - (before - batch_range) * (1.0 - self.decay)
        now = ops.where(ops.equal(*ops.unstack(before, 2)), batch_range, now)
        if training:
            self.range.assign(_unless_empty(inputs, now, before))
        low, high = ops.unstack(now, 2)
        if self.change is None:
            return round_to_range(inputs, low, high)
        start, stop, step = nudged(low, high, _FIRST, _LAST)
        outputs = round_by_steps(
            ops.cast(inputs, "float32"),
            1.0 + ops.convert_to_tensor(self.change),
            step,
            ops.round(start / step),
            ops.round(stop / step),
            _entries(inputs),
        )
        return ops.cast(outputs, inputs.dtype)

    def _seen(self, x: Tensor) -> Any:
        ops = keras.ops
        x = ops.cast(ops.stop_gradient(x), "float32")
        high = ops.maximum(ops.max(x), 0.0)
        return ops.stack((ops.minimum(ops.min(x), 0.0), high))

    def get_config(self) -> dict[str, Any]:
        """Return the constructor arguments."""
        own = {"decay": self.decay, "learned": self.learned, "tensors": self.tensors}
        return {**super().get_config(), **own, "ends": self.fixed}

    @classmethod
    def from_config(cls, config: dict[str, Any]) -> Any:
        """Create an instance from the output of `get_config`."""
        # Only files of earlier versions contain this key.
        return cls(**{k: v for k, v in config.items() if k != "never_negative"})


def _unless_empty(inputs: Tensors, now: Any, before: Any) -> Any:
    if inputs.shape[0]:
        return now
    return keras.ops.where(keras.ops.equal(keras.ops.size(inputs), 0), before, now)


def _entries(x: Tensor) -> Any:
    shape = keras.ops.shape(x)[1:]
    if all(isinstance(length, int) for length in shape):
        return float(np.prod(shape))
    entries = 1
    for length in shape:
        entries = entries * length
    return keras.ops.cast(entries, "float32")


class FakeQuantizedInside(keras.layers.Layer):
    """Base class of layers that round an inner tensor with `inner_quantizer`."""

    inner_quantizer: Any


class _Dense(FakeQuantizedInside):
    """A Dense that rounds the input of its activation."""

    def call(self, inputs: Tensors, training: Any = None) -> Any:
        y = keras.ops.matmul(inputs, self.kernel)
        y = y if self.bias is None else keras.ops.add(y, self.bias)
        return self.activation(self.inner_quantizer(y, training=training))


class _Separable(FakeQuantizedInside):
    """A separable convolution that rounds the output of its depthwise kernel."""

    def call(self, inputs: Tensors) -> Any:
        ops, form = keras.ops, self.data_format
        within = ops.depthwise_conv(
            inputs,
            self.depthwise_kernel,
            self.strides,
            self.padding,
            form,
            self.dilation_rate,
        )
        within = self.inner_quantizer(within)
        y = ops.conv(within, self.pointwise_kernel, 1, "valid", form)
        return with_bias_and_activation(self, y)


def inside_form(layer: Layer) -> type:
    """Return the class that rounds inside a Dense or a separable convolution."""
    is_dense = entry_of(layer, subclasses=True).kernel == "dense"
    return _Dense if is_dense else _Separable
