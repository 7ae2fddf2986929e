"""NF4: sixteen levels at quantiles of the normal distribution.

Source: Dettmers, Pagnoni, Holtzman and Zettlemoyer, "QLoRA: Efficient Finetuning of
Quantized LLMs", 2023.
"""

from functools import cache
from statistics import NormalDist
from typing import Any

import keras
import numpy as np

from kerasmem.compression.quantize.math import finite
from kerasmem.types import Tensor

_OUTERMOST = 0.9677083
"""Quantile of the largest level: the mean of (1 - 1/30) and (1 - 1/32)."""


@cache
def levels() -> np.ndarray:
    """Return the float32 levels, indexed by code modulo 16.

    Example:
        >>> levels()[[0, 8, 9]].tolist()
        [0.0, 1.0, -1.0]
    """
    quantile = NormalDist().inv_cdf
    above = [quantile(p) for p in np.linspace(_OUTERMOST, 0.5, 9)[:-1]]
    below = [-quantile(p) for p in np.linspace(_OUTERMOST, 0.5, 8)[:-1]]
    quantiles = [0.0, *above[::-1], *below]
    table = np.array(quantiles, np.float32) / np.float32(above[0])
    table.setflags(write=False)
    return table


def normal_codes(values: np.ndarray, scales: np.ndarray) -> np.ndarray:
    """Return the int8 codes in [-8, 7] of the nearest levels. Zero has code 0.

    Each scale is the largest absolute entry of its group.

    Raises:
        ModelError: If `values` contains NaN or infinity.
    """
    exact = finite(values).astype(np.float32, copy=False) / scales
    order = np.argsort(levels())
    rising = levels()[order]
    codes = order.astype(np.int8)
    codes[codes > 7] -= 16
    return codes[np.searchsorted((rising[1:] + rising[:-1]) / 2, exact)]


def normal_values(codes: Tensor) -> Any:
    """Return the float32 levels of a tensor of codes."""
    ops = keras.ops
    places = ops.cast(codes, "int32") & 15
    return ops.take(ops.convert_to_tensor(levels()), places, axis=0)
