"""How far two lists of outputs are apart."""

from collections.abc import Sequence

import numpy as np

from kerasmem.errors import ModelError


def difference(
    outputs: Sequence[np.ndarray], expected: Sequence[np.ndarray], least: float
) -> float:
    """Return the largest absolute difference as a share of the largest output.

    Each output is taken for itself, and the worst of them counts.

    Args:
        outputs: of the file.
        expected: those of the model, of the same shapes.
        least: what the difference is a share of where no output is as large.

    Raises:
        ModelError: if numbers or shapes do not agree; NaN agrees only with NaN.

    Example:
        >>> difference([np.array([1.0, 4.5])], [np.array([1.0, 4.0])], least=1.0)
        0.125
    """
    shapes = [[tuple(a.shape) for a in arrays] for arrays in (outputs, expected)]
    if shapes[0] != shapes[1]:
        raise ModelError(
            "The file does not give what its model gives. Expected: outputs of the "
            f"shapes {shapes[1]}. Received: {shapes[0]}."
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
