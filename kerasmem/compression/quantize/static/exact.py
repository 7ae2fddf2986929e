"""Sums of products of integers, computed with floats that can hold them."""

from collections.abc import Callable
from typing import Any

import keras

from kerasmem.compression.quantize.static.product import MOST_PRODUCTS


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
