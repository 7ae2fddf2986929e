"""Hard SiLU of codes: `x * relu6(x + 3) / 6`, in 16 bits as LiteRT computes it.

Source: Howard and others, "Searching for MobileNetV3", 2019.
"""

import keras
import numpy as np

from kerasmem.compression.quantize.static.codes import LEAST, MOST
from kerasmem.compression.quantize.static.multiplier import fixed_point
from kerasmem.compression.quantize.static.table import IntegerLookup

_BITS = 7
"""An input less its zero point has nine bits: so many are left of 16."""

_ONE = 1 << 15


@keras.saving.register_keras_serializable("kerasmem")
class IntegerHardSilu(IntegerLookup):
    """A hard SiLU of codes."""

    def table(self) -> np.ndarray:
        """Return the code for every code from -128, int8."""
        (codes,), output = self.input_codes, self.output_codes
        step = np.float32(codes.scale) / np.float32(1 << _BITS)
        x = (np.arange(LEAST, MOST + 1) - codes.zero_point) << _BITS
        mantissa, exponent = _short(step / np.float32(output.scale))
        product = _truncated(_gate(x, step) * _high(x, mantissa))
        steps = _divided(product, max(-exponent, 0)) + output.zero_point
        return np.clip(steps, LEAST, MOST).astype(np.int8)


def _gate(x: np.ndarray, step: np.float32) -> np.ndarray:
    """Return `relu6(x + 3) / 6` in steps of 2 ** -15, for `x` in steps of `step`."""
    mantissa, exponent = _short(step / np.float32(3 / _ONE))
    if exponent > 0:
        # The last bit is shifted behind the product: what is cut off here, is there.
        shifted = _saturated(x << min(exponent - 1, 15))
        thirds = _saturated(_high(shifted, mantissa) << 1)
    else:
        thirds = _divided(_high(x, mantissa), -exponent)
    return (thirds + _ONE) >> 1


def _short(number: np.float32) -> tuple[int, int]:
    """Return a multiplier as `mantissa * 2 ** (exponent - 15)`, of 16 bits."""
    mantissa, exponent = (int(x) for x in fixed_point(np.float64(number)))
    return min((mantissa + _ONE) >> 16, _ONE - 1), exponent


def _high(x: np.ndarray, mantissa: int) -> np.ndarray:
    """Return `x * mantissa / 2 ** 15`, rounded, halves up."""
    product = x * mantissa
    nudge = np.where(product >= 0, _ONE // 2, 1 - _ONE // 2)
    return _truncated(product + nudge)


def _truncated(x: np.ndarray) -> np.ndarray:
    """Return `x / 2 ** 15` without what is behind the point."""
    return np.sign(x) * (np.abs(x) >> 15)


def _divided(x: np.ndarray, bits: int) -> np.ndarray:
    """Return `x / 2 ** bits`, rounded, halves away from zero."""
    half = (1 << bits) >> 1
    return np.sign(x) * ((np.abs(x) + half) >> bits)


def _saturated(x: np.ndarray) -> np.ndarray:
    return np.clip(x, -_ONE, _ONE - 1)
