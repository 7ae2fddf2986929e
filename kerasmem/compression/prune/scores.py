"""How much each entry of a weight matters: the criteria.

Sources: Han, Pool, Tran and Dally, "Learning both Weights and Connections for Efficient
Neural Networks", 2015 (magnitude); Molchanov, Mallya, Tyree, Frosio and Kautz,
"Importance Estimation for Neural Network Pruning", 2019 (Taylor); Lee, Ajanthan and
Torr, "SNIP", 2019 (the same of one batch); Sanh, Wolf and Rush, "Movement Pruning",
2020; Sun, Liu, Bair and Kolter, "A Simple and Effective Pruning Approach for Large
Language Models", 2023 (Wanda).
"""

import math
from collections.abc import Sequence

import numpy as np

GRADIENT, INPUTS = "gradient", "inputs"

CRITERIA: dict[str, str | None] = {
    "magnitude": None,
    "magnitude/rms": None,
    "taylor": GRADIENT,
    "movement": GRADIENT,
    "wanda": INPUTS,
    "random": None,
}
"""The criteria by name, and what each has to know beside the weights."""


def scores(
    criterion: str,
    weights: Sequence[np.ndarray],
    evidence: Sequence[np.ndarray] | None = None,
    seed: int = 0,
) -> list[np.ndarray]:
    """Return how much each entry matters, an array per weight; the most stays.

    Args:
        criterion: a key of `CRITERIA`.
        weights: arrays of any shapes and float dtypes.
        evidence: for each weight what the criterion has to know: the sum over batches
            of the squared product of weight and gradient (`"taylor"`), of their
            negative product (`"movement"`), or the L2 norm of the input that each entry
            multiplies, of a shape that broadcasts (`"wanda"`).
        seed: of `"random"`; the same seed gives the same scores.

    Example:
        >>> scores("magnitude", [np.array([-2.0, 1.0])])
        [array([2., 1.])]
    """
    if criterion == "random":
        return [
            np.random.default_rng((seed, index)).random(each.shape, "float32")
            for index, each in enumerate(weights)
        ]
    if evidence is not None and criterion != "wanda":
        return list(evidence)
    sizes = [_magnitude(each) for each in weights]
    if evidence is not None:
        return [size * known for size, known in zip(sizes, evidence, strict=True)]
    if criterion == "magnitude/rms":
        return [_relative(size) for size in sizes]
    return sizes


def _magnitude(weights: np.ndarray) -> np.ndarray:
    """Return absolute values in float32 or better, NaN as infinity."""
    exact = weights.astype(np.promote_types(weights.dtype, np.float32), copy=False)
    magnitude = np.abs(exact)
    magnitude[np.isnan(magnitude)] = np.inf
    return magnitude


def _relative(magnitude: np.ndarray) -> np.ndarray:
    """Return magnitudes divided by their root mean square."""
    scale = math.sqrt(float(np.mean(np.square(magnitude, dtype=np.float64))))
    if not 0 < scale < math.inf:
        return magnitude
    # In the type of the weights the scale of the smallest ones is zero.
    return (magnitude / np.float64(scale)).astype(magnitude.dtype)
