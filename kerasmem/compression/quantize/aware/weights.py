"""Float weights in training that are read as quantized weights.

Source of learned scales: Esser et al., "Learned Step Size Quantization", 2020.
"""

import math
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import keras
import numpy as np

from kerasmem.compression.quantize.aware.rounding import (
    LEAST,
    round_affine,
    round_by_steps,
    round_symmetric,
    round_to_type,
)
from kerasmem.compression.quantize.coding import Coding
from kerasmem.compression.quantize.math import LIMIT
from kerasmem.compression.quantize.variable import StandIn
from kerasmem.errors import ModelError
from kerasmem.graph.computed import named_beside
from kerasmem.graph.values import represents, to_numpy
from kerasmem.types import Tensor, Tensors

_SMALLEST = 1e-30
"""Groups with a smaller scale count as all zero."""


class _Read(threading.local):
    """Values of stand-ins in the current call, by their id.

    Thread-local, because replicas of a model run their calls in separate threads.
    """

    def __init__(self) -> None:
        self.values: dict[int, Any] = {}


_READ = _Read()


class FakeQuantizedVariable(StandIn):
    """A float weight that is rounded to `coding` when read.

    Gradients ignore the rounding (straight-through estimator). Optimizers and files use
    the float weight.

    Args:
        coding: Future storage format.
        origin: Float weight.
        path: Name of the weight in messages.
        learned: Whether scales are trained too.

    Attributes:
        first: Initial scales, float32, shape `(scales,)`, or None without learned
            scales.
        change: Trained change, for scales `first * (1 + change)`. Weight decay
            therefore pulls scales to their initial values.
    """

    def __init__(
        self, coding: Coding, origin: Any, path: str = "", *, learned: bool = False
    ) -> None:
        super().__init__(coding, origin)
        self.origin = origin
        self.first = self.change = None
        self._user_path = path or origin.path
        if learned:
            self._scale_shape = coding.stored(tuple(origin.shape)).scales[0]
            with named_beside(origin):
                self.first = self._variable(
                    "scale", self._first_scales, trainable=False
                )
                self.change = self._variable("scale_change", "zeros", trainable=True)

    dtype = property(lambda self: self.origin.dtype)

    @property
    def trainable(self) -> bool:
        """Whether the float weight is trained."""
        return self.origin.trainable

    @trainable.setter
    def trainable(self, is_trainable: bool) -> None:
        self.origin.trainable = is_trainable

    @property
    def parts(self) -> Sequence[Any]:
        """Float weight and, with learned scales, `first` and `change`."""
        return [v for v in (self.origin, self.first, self.change) if v is not None]

    @property
    def value(self) -> Any:
        """Rounded weight in the autocast dtype."""
        hoisted_value = _READ.values.get(id(self))
        return self.origin._maybe_autocast(
            self._rounded() if hoisted_value is None else hoisted_value
        )

    @property
    def scales(self) -> np.ndarray | None:
        """Current scales in stored shape, float32, or None without learned scales."""
        if self.change is None:
            return None
        relative = np.maximum(np.float32(1) + to_numpy(self.change), np.float32(LEAST))
        return np.reshape(relative * to_numpy(self.first), self._scale_shape)

    def plain(self) -> Any:
        """Return the float weight."""
        return to_numpy(self.origin)

    def assign(self, value: Any) -> Any:
        """Replace the float weight.

        Raises:
            ModelError: If the layer assigns in its own call, because it computed the
                value from the rounded weight.
        """
        if id(self) in _READ.values:
            raise ModelError(
                "A fake-quantized weight cannot be assigned in a forward pass. "
                f"Received: a layer that assigns {self._user_path!r}. Next: exclude "
                f"the weight with Quantize(..., exclude={self._user_path!r})."
            )
        return self.origin.assign(value)

    @contextmanager
    def read_once(self, inputs: Tensors) -> Iterator[None]:
        """Return a scope that rounds the weight once, on entry."""
        del inputs
        with self._read_as(_READ.values.get(id(self))):
            yield

    read_after = read_once

    @contextmanager
    def floating(self) -> Iterator[None]:
        """Return a scope in which the weight is read without rounding."""
        with self._read_as(keras.ops.convert_to_tensor(self._uncast())):
            yield

    @contextmanager
    def _read_as(self, value: Any) -> Iterator[None]:
        before = _READ.values.get(id(self))
        _READ.values[id(self)] = self._rounded() if value is None else value
        try:
            yield
        finally:
            if before is None:
                del _READ.values[id(self)]
            else:
                _READ.values[id(self)] = before

    def _rounded(self) -> Any:
        value = self._uncast()
        exact = keras.ops.cast(value, "float32")
        return keras.ops.cast(self._round(exact), value.dtype)

    def _round(self, x: Tensor) -> Any:
        coding = self.coding
        if coding.bits == 16:
            return round_to_type(x, coding.dtype)
        shape = tuple(x.shape)
        rows, x = coding.rows(shape), coding.laid_out(x, keras.ops)
        if self.change is not None:
            x = self._round_by_scales(x)
        else:
            round_codes = round_symmetric if coding.symmetric else round_affine
            x = round_codes(x, coding.scale_axes(shape), coding.bits)
        return x if rows is None else rows.restore(x, keras.ops)

    def _round_by_scales(self, x: Tensor) -> Any:
        ops, shape = keras.ops, self._scale_shape
        relative = ops.reshape(1.0 + ops.convert_to_tensor(self.change), shape)
        first = ops.reshape(ops.convert_to_tensor(self.first), shape)
        limit = LIMIT >> (8 - self.coding.bits)
        entries = math.prod(self.shape) / math.prod(shape)
        return round_by_steps(x, relative, first, -limit, limit, entries)

    def _uncast(self) -> Any:
        origin = self.origin
        autocast, origin._autocast = origin._autocast, False
        try:
            return keras.ops.convert_to_tensor(origin.value)
        finally:
            origin._autocast = autocast

    def _variable(self, suffix: str, initializer: Any, *, trainable: bool) -> Any:
        variable = keras.Variable(
            initializer,
            (math.prod(self._scale_shape),),
            "float32",
            trainable=trainable,
            autocast=False,
            name=f"{self.origin.name}_{suffix}",
        )
        represents(variable, None)
        return variable

    def _first_scales(self, shape: Any, dtype: Any) -> Any:
        values = first_scales(self.coding, to_numpy(self.origin))
        scales = np.ones(shape) if values is None else values.reshape(shape)
        return keras.ops.convert_to_tensor(scales, dtype)


def first_scales(coding: Coding, values: np.ndarray) -> np.ndarray | None:
    """Return the initial float32 scales of a weight. None if the weight is all zero.

    Groups that are all zero get the mean scale of the others.
    """
    laid_out, scales = coding.laid_out(values, np), coding.encode(values).scales
    group_axes = tuple(axis for axis, length in enumerate(scales.shape) if length == 1)
    is_used = np.abs(laid_out).max(axis=group_axes, keepdims=True) > _SMALLEST
    if not is_used.any():
        return None
    return np.where(is_used, scales, scales[is_used].mean()).astype("float32")
