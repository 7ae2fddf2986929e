"""The arithmetic of `math.py` on tensors of any backend, inside a compiled step."""

from collections.abc import Sequence
from typing import Any

from keras import ops

from kerasmem.memory.compress_activations.math import (
    FINEST,
    HIGHEST,
    NAN,
    NEGATIVE,
    POSITIVE,
    SMALLEST,
    STEPS,
    Grouping,
)
from kerasmem.memory.compress_activations.noise import rounding_noise

_LARGEST = {"float16": 65504.0}


def pack(tensor: Any, groups: Grouping, seed: int) -> tuple[Any, Any, Any]:
    """Return uint8 codes, float32 scales and the float32 codes of zero.

    Args:
        tensor: floats of up to 32 bits.
        groups: what `grouping` says of its shape.
        seed: of the rounding.
    """
    whole = _grouped(ops.cast(tensor, "float32"), groups)
    finite = ops.isfinite(whole)
    known = ops.where(finite, whole, 0.0)
    low = ops.min(known, axis=-1, keepdims=True)
    high = ops.max(known, axis=-1, keepdims=True)
    scales = ops.maximum(high / STEPS - low / STEPS, SMALLEST)
    scales = ops.maximum(scales, ops.maximum(high, -low) * FINEST)
    zeros = ops.ceil(-low / scales)
    exact = (known + zeros * scales) * (1.0 / scales)
    codes = ops.floor(exact + rounding_noise(known, seed))
    codes = ops.clip(codes, 0, HIGHEST)
    infinite = ops.where(whole < 0, float(NEGATIVE), float(NAN))
    special = ops.where(whole > 0, float(POSITIVE), infinite)
    codes = ops.where(finite, codes, special)
    return ops.cast(codes, "uint8"), scales, zeros


def unpack(
    packed: Sequence[Any], groups: Grouping, shape: Sequence[Any], dtype: str
) -> Any:
    """Return the tensor of `shape` and `dtype` that `pack` made `packed` of."""
    codes, scales, zeros = packed
    codes = ops.cast(codes, "float32")
    values = (codes - zeros) * scales
    if dtype in _LARGEST:
        values = ops.clip(values, -_LARGEST[dtype], _LARGEST[dtype])
    infinite = ops.where(codes == POSITIVE, float("inf"), float("-inf"))
    special = ops.where(codes == NAN, float("nan"), infinite)
    values = ops.where(codes > HIGHEST, special, values)
    rows = ops.reshape(values, (*shape[: groups.leading], groups.count * groups.length))
    return ops.reshape(ops.cast(rows[..., : groups.entries], dtype), shape)


def _grouped(tensor: Any, groups: Grouping) -> Any:
    leading = ops.shape(tensor)[: groups.leading]
    rows = ops.reshape(tensor, (*leading, groups.entries))
    if groups.padding:
        last = ops.repeat(rows[..., -1:], groups.padding, axis=-1)
        rows = ops.concatenate([rows, last], axis=-1)
    return ops.reshape(rows, (*leading, groups.count, groups.length))
