"""Int8 codes of floats, and what all layers share that compute with them."""

import inspect
import math
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import keras
import numpy as np

from kerasmem.compression.quantize.math import LIMIT
from kerasmem.errors import KerasMemWarning

LEAST, MOST = -128, 127


@dataclass(frozen=True)
class Codes:
    """What the int8 codes of a tensor stand for: `scale * (code - zero_point)`.

    Args:
        scale: a positive float32 number.
        zero_point: the code of 0, in [-128, 127].
    """

    scale: float
    zero_point: int

    @classmethod
    def of_range(cls, low: float, high: float) -> "Codes":
        """Return the codes for a range.

        Args:
            low: its lower end, at most 0.
            high: its upper end, at least 0 and above `low`.

        Example:
            >>> Codes.of_range(0.0, 255.0)
            Codes(scale=1.0, zero_point=-128)
        """
        scale = np.float32((high - low) / (MOST - LEAST))
        scale = float(max(scale, np.finfo(np.float32).tiny))
        return cls(scale, min(MOST, max(LEAST, rounded(LEAST - low / scale))))

    def of(self, value: float) -> int:
        """Return the code of a real number, in [-128, 127].

        Example:
            >>> Codes(0.5, -128).of(6.0)
            -116
        """
        code = rounded(float(np.float32(value) / np.float32(self.scale)))
        return min(MOST, max(LEAST, code + self.zero_point))

    def to_json(self) -> dict[str, Any]:
        """Return this as plain data."""
        return dict(vars(self))


def rounded(value: float) -> int:
    """Return the nearest whole number, the one farther from zero of two, as C does.

    Example:
        >>> rounded(-0.5), rounded(2.5)
        (-1, 3)
    """
    return int(math.copysign(math.floor(abs(value) + 0.5), value))


RELU = {"relu": None, "relu6": 6.0}
"""Upper ends of the activations that a layer can have within it."""


class IntegerLayer(keras.layers.Layer):
    """A layer that computes with int8 codes as LiteRT's kernels do.

    Args:
        inputs: the codes of each of its inputs; none for a layer that takes floats.
        output: the codes of its output; None where it gives floats.
        activation: None, `"relu"` or `"relu6"`, within it.
        keeps_mask: whether a mask goes through it.

    A subclass annotates the arguments of its own, with their defaults, as a dataclass
    does; they are attributes of these names, lists as tuples.
    """

    def __init__(
        self,
        inputs: Any,
        output: Any,
        activation: str | None = None,
        *,
        keeps_mask: bool = True,
        **kwargs: Any,
    ) -> None:
        names = self.own_arguments()
        own = {name: kwargs.pop(name) for name in names if name in kwargs}
        # Not the global policy: codes and scales do not fit half precision.
        super().__init__(**{"dtype": "float32", "trainable": False, **kwargs})
        self.supports_masking = True
        self.input_codes = tuple(map(_codes, inputs))
        self.output_codes = output and _codes(output)
        self.activation = activation
        self.keeps_mask = keeps_mask
        for name in names:
            value = own[name] if name in own else getattr(type(self), name)
            setattr(self, name, _as_tuples(value))

    @classmethod
    def own_arguments(cls) -> list[str]:
        """Return the names of the arguments that a subclass has of its own."""
        classes = cls.__mro__[: cls.__mro__.index(IntegerLayer)]
        return [name for each in classes for name in inspect.get_annotations(each)]

    def get_config(self) -> dict[str, Any]:
        """Return the arguments, those of a subclass too."""
        return {
            **super().get_config(),
            **{name: getattr(self, name) for name in self.own_arguments()},
            "inputs": [codes.to_json() for codes in self.input_codes],
            "output": self.output_codes and self.output_codes.to_json(),
            "activation": self.activation,
            "keeps_mask": self.keeps_mask,
        }

    def compute_mask(self, inputs: Any, previous_mask: Any) -> Any:
        """Return the mask of the inputs where one goes through, else None."""
        del inputs
        return previous_mask if self.keeps_mask else None

    def as_output_codes(self, integers: Any) -> Any:
        """Return int8 codes of int32 numbers in steps of the output's scale."""
        low, high = LEAST, MOST
        zero = self.output_codes.zero_point
        if self.activation is not None:
            low, top = zero, RELU[self.activation]
            high = MOST if top is None else self.output_codes.of(top)
        return keras.ops.cast(keras.ops.clip(integers + zero, low, high), "int8")


def centered(codes: Any, zero_point: int) -> Any:
    """Return int32 numbers: codes less the code of zero."""
    return keras.ops.cast(codes, "int32") - zero_point


def _codes(codes: Any) -> Codes:
    return codes if isinstance(codes, Codes) else Codes(**codes)


def _as_tuples(value: Any) -> Any:
    is_sequence = isinstance(value, list | tuple)
    return tuple(map(_as_tuples, value)) if is_sequence else value


_UNTRAINED = (
    "Layers that compute with int8 codes are not trained, and no gradient reaches what "
    "is before them: this training leaves them as they are. Next: train "
    "km.quantization_aware(model, km.Quantize('int8-static')) of the float model, and "
    "quantize that."
)


@keras.saving.register_keras_serializable("kerasmem")
class ToCodes(IntegerLayer):
    """Rounds floats to int8 codes.

    Args:
        warns: whether it says in training that its model is not trained.
    """

    warns: bool = False

    def compute_output_spec(self, inputs: Any, training: Any = None) -> Any:
        """Return the shape of the inputs, in int8."""
        del training
        # Not by tracing: some operations of Keras say that they give sparse tensors.
        return keras.KerasTensor(inputs.shape, dtype="int8")

    def call(self, inputs: Any, training: Any = None) -> Any:
        """Return int8 codes of floats; what is outside of the range gets its end.

        Warns:
            KerasMemWarning: in training, if it is to.
        """
        if self.warns and training is True:
            warnings.warn(_UNTRAINED, KerasMemWarning, stacklevel=2)
        ops, codes = keras.ops, self.output_codes
        steps = ops.round(ops.cast(inputs, "float32") / codes.scale)
        # Clipped while they are floats: a cast of what is too large may give anything.
        clipped = ops.clip(steps, LEAST - codes.zero_point, MOST - codes.zero_point)
        return ops.cast(clipped + codes.zero_point, "int8")


@keras.saving.register_keras_serializable("kerasmem")
class FromCodes(IntegerLayer):
    """Gives the floats that int8 codes stand for."""

    def call(self, inputs: Any) -> Any:
        """Return float32 numbers."""
        codes = self.output_codes
        steps = centered(inputs, codes.zero_point)
        return keras.ops.cast(steps, "float32") * codes.scale


MOST_PRODUCTS = (1 << 24) // (128 * LIMIT)
"""So many products of codes float32 sums up exactly, in any order."""


def exact_sums(
    product: Callable[[Any, Any], Any], x: Any, kernel: Any, *, axis: int, each: int = 1
) -> Any:
    """Return the product of codes and a kernel as int32, exactly.

    It is computed in parts that float32 holds exactly, for which all backends have
    fast kernels.

    Args:
        product: takes float32 tensors, a part of `x` and one of the kernel.
        x: float32, with whole numbers in [-128, 127]; its last axis is summed over.
        kernel: int8, in [-127, 127].
        axis: the axis of the kernel that goes with the last one of `x`.
        each: number of products for every entry along it.
    """
    ops = keras.ops
    length, size = kernel.shape[axis], max(MOST_PRODUCTS // each, 1)
    weights = ops.cast(kernel, "float32")
    before = (slice(None),) * axis
    total = None
    for start in range(0, length, size):
        part = slice(start, min(start + size, length))
        whole = size >= length
        left = x if whole else x[..., part]
        right = weights if whole else weights[(*before, part)]
        sums = ops.cast(ops.round(product(left, right)), "int32")
        total = sums if total is None else total + sums
    return total


_MOST = 1 << 30
"""Integers beyond this are clipped: times any multiplier in use they saturate."""


def fixed_point(numbers: Any) -> tuple[np.ndarray, np.ndarray]:
    """Return int32 mantissas and exponents of positive numbers.

    Numbers below 2 ** -31 become zero.

    Args:
        numbers: float64, at most 2 ** 15.

    Example:
        >>> mantissa, exponent = fixed_point(np.array([0.75, 1e-12]))
        >>> (mantissa / 2**31 * 2.0**exponent).tolist()
        [0.75, 0.0]
    """
    mantissa, exponent = np.frexp(np.asarray(numbers, np.float64))
    mantissa = np.floor(mantissa * (1 << 31) + 0.5).astype(np.int64)
    carry = mantissa == 1 << 31
    mantissa, exponent = np.where(carry, mantissa // 2, mantissa), exponent + carry
    none = exponent < -30
    mantissa, exponent = np.where(none, 0, mantissa), np.where(none, 0, exponent)
    return mantissa.astype(np.int32), exponent.astype(np.int32)


def times(integers: Any, mantissa: Any, exponent: Any, *, twice: bool = True) -> Any:
    """Return `integers * mantissa * 2 ** (exponent - 31)`, rounded to int32.

    Args:
        integers: an int32 tensor, within 2 ** 30 after a shift by a positive exponent.
        mantissa: int32, from 0, an array or tensor that broadcasts against it.
        exponent: int32, in [-30, 15], of the shape of `mantissa`.
        twice: round the product to 31 bits and the result again, halves away from
            zero, as LiteRT's kernels do; False rounds once, halves up.
    """
    ops = keras.ops
    mantissa, exponent = _int32(mantissa), _int32(exponent)
    left, right = ops.maximum(exponent, 0), ops.maximum(-exponent, 0)
    most = ops.right_shift(_int32(_MOST), left)
    shifted = ops.left_shift(ops.clip(integers, -most, most), left)
    if twice:
        return _divided(_high(shifted, mantissa, _int32(1 << 15)), right)
    # The halves that the shift below rounds away from are of no lower bits.
    nudge = ops.where(right == 0, _int32(1 << 15), _int32(0))
    high = _high(shifted, mantissa, nudge)
    half = ops.right_shift(ops.left_shift(_int32(1), right), _int32(1))
    return ops.right_shift(high + half, right)


def _high(a: Any, b: Any, nudge: Any) -> Any:
    """Return `(a * b + nudge * 2 ** 15) // 2 ** 31` for |a| <= 2 ** 30, b >= 0."""
    low_a, low_b = _bits(a, 15), _bits(b, 16)
    high_a, high_b = _shift(a, 15), _shift(b, 16)
    one, two, low = high_a * low_b, low_a * high_b, low_a * low_b
    carry = _bits(one, 16) + 2 * _bits(two, 15) + _shift(low, 15) + nudge
    return high_a * high_b + _shift(one, 16) + _shift(two, 15) + _shift(carry, 16)


def _divided(x: Any, bits: Any) -> Any:
    """Return `x / 2 ** bits`, rounded, halves away from zero."""
    ops = keras.ops
    mask = ops.left_shift(_int32(1), bits) - 1
    threshold = ops.right_shift(mask, _int32(1)) + ops.cast(x < 0, "int32")
    over = ops.cast(ops.bitwise_and(x, mask) > threshold, "int32")
    return ops.right_shift(x, bits) + over


def _shift(x: Any, bits: int) -> Any:
    return keras.ops.right_shift(x, _int32(bits))


def _bits(x: Any, count: int) -> Any:
    return keras.ops.bitwise_and(x, _int32((1 << count) - 1))


def _int32(x: Any) -> Any:
    return keras.ops.cast(keras.ops.convert_to_tensor(x), "int32")
