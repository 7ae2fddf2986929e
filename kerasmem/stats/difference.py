"""Difference between two lists of outputs."""

from collections.abc import Sequence

import numpy as np

from kerasmem.errors import ModelError


def difference(
    outputs: Sequence[np.ndarray], expected: Sequence[np.ndarray], least: float
) -> float:
    """Return the largest absolute difference relative to the largest output.

    Each output is compared separately, and the largest result counts.

    `least` is the minimum of the reference magnitude.

    Raises:
        ModelError: If the number or shapes of outputs differ.

    Example:
        >>> difference([np.array([1.0, 4.5])], [np.array([1.0, 4.0])], least=1.0)
        0.125
    """
    shapes = [[tuple(a.shape) for a in arrays] for arrays in (outputs, expected)]
    if shapes[0] != shapes[1]:
        raise ModelError(
            "The outputs of the file and of the model differ in shape. "
            f"Expected: {shapes[1]}. Received: {shapes[0]}."
        )
    pairs = zip(outputs, expected, strict=True)
    return max((_of_one(a, b, least) for a, b in pairs), default=0.0)


def _of_one(output: np.ndarray, expected: np.ndarray, least: float) -> float:
    output, expected = output.astype(np.float64), expected.astype(np.float64)
    equal = (output == expected) | (np.isnan(output) & np.isnan(expected))
    if equal.all():
        return 0.0
    gaps = np.abs(output - expected)[~equal]
    if not np.isfinite(gaps).all():
        return float("inf")
    finite = np.abs(expected[np.isfinite(expected)])
    return float(gaps.max() / max(finite.max(initial=0.0), least))
