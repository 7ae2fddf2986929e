"""Losses on the relations between the samples of a batch.

Sources: Frederick Tung, Greg Mori: Similarity-Preserving Knowledge Distillation, 2019.
Wonpyo Park, Dongju Kim, Yan Lu, Minsu Cho: Relational Knowledge Distillation, 2019.
Baoyun Peng, Xiao Jin, Jiaheng Liu, Dongsheng Li, Yichao Wu, Yu Liu, Shunfeng Zhou,
Zhaoning Zhang: Correlation Congruence for Knowledge Distillation, 2019. Nikolaos
Passalis, Anastasios Tefas: Learning Deep Representations with Probabilistic Knowledge
Transfer, 2018.
"""

import math
from collections.abc import Callable
from dataclasses import KW_ONLY, dataclass
from typing import Annotated, Any, ClassVar

from keras import ops

from kerasmem.checks import Real, Whole
from kerasmem.compression.distill.losses.base import (
    SMALLEST,
    FeatureLoss,
    Layers,
    batch_size,
    flat,
    huber,
    off_diagonal,
    products,
    unit,
)
from kerasmem.errors import ConfigError
from kerasmem.types import Model, Tensor

_GAMMA, _ORDER = 0.4, 2
_SMALLEST = 1e-7


def similarities(features: Tensor) -> Any:
    """Returns the dot products of all pairs of features, with rows of length 1."""
    return unit(products(flat(features)))


def distances_between(features: Tensor) -> Any:
    """Returns all pairwise distances divided by their mean, shape (batch, batch)."""
    vectors = flat(features)
    away = off_diagonal(vectors)
    squares = ops.sum(ops.square(_differences(vectors)), axis=-1)
    lengths = away * ops.sqrt(ops.maximum(squares, SMALLEST))
    mean = ops.sum(lengths) / ops.maximum(ops.sum(away), 1.0)
    return lengths / ops.maximum(mean, SMALLEST)


def angles_at(features: Tensor) -> Any:
    """Returns the cosine of all angles between samples, shape (batch,) * 3."""
    edges = unit(_differences(flat(features)))
    return ops.matmul(edges, ops.transpose(edges, (0, 2, 1)))


def _differences(vectors: Tensor) -> Any:
    return ops.expand_dims(vectors, 0) - ops.expand_dims(vectors, 1)


def correlations(features: Tensor, gamma: float, order: int) -> Any:
    """Returns the Gaussian kernel of all pairs as a Taylor series, (batch, batch).

    The kernel is exp(-gamma |x - y|^2) of features scaled to length 1. `order` is the
    highest power of the dot product in the series.
    """
    dots = products(unit(flat(features)))
    series = ops.ones_like(dots)
    for power in range(order, 0, -1):  # Horner's method avoids a power of 0
        series = 1 + 2 * gamma / power * dots * series
    return math.exp(-2 * gamma) * series


def neighbor_probabilities(features: Tensor) -> Any:
    """Returns conditional neighbor probabilities, (batch, batch), rows sum to 1.

    They are cosine similarities shifted to [0, 1], with a zero diagonal.
    """
    kernel = (products(unit(flat(features))) + 1) / 2 * off_diagonal(features)
    return kernel / ops.maximum(ops.sum(kernel, axis=-1, keepdims=True), _SMALLEST)


def _mean_square(teacher: Model, student: Model) -> Any:
    squares = ops.square(teacher - student)
    return ops.sum(squares, axis=-1) / batch_size(teacher)


def _of_pairs(teacher: Model, student: Model) -> Any:
    others = ops.maximum(batch_size(teacher) - 1, 1.0)
    return ops.sum(huber(teacher - student), axis=-1) / others


def _of_triples(teacher: Model, student: Model) -> Any:
    count = batch_size(teacher)
    values = huber(teacher - student) * off_diagonal(teacher)
    return ops.sum(values, axis=(1, 2)) / ops.maximum((count - 1) * (count - 2), 1.0)


def _divergence(teacher: Model, student: Model) -> Any:
    p, q = (ops.maximum(matrix, _SMALLEST) for matrix in (teacher, student))
    return ops.sum(off_diagonal(p) * p * (ops.log(p) - ops.log(q)), axis=-1)


KINDS: dict[str, tuple[Callable[..., Any], Callable[[Any, Any], Any]]] = {
    "distance": (distances_between, _of_pairs),
    "angle": (angles_at, _of_triples),
    "similarity": (similarities, _mean_square),
    "correlation": (correlations, _mean_square),
    "neighbors": (neighbor_probabilities, _divergence),
}
"""Relation between the samples of a model, and distance of two relations, by kind."""


@dataclass(frozen=True)
class Relational(FeatureLoss):
    """Relational distillation: transfers the relations between samples.

    Compares relations between all samples of a batch, based on the features of one
    layer per model. The relations are:

    - `"distance"`: pairwise distance divided by the mean distance, with Huber loss.
    - `"angle"`: cosine of the angle at each sample between two others, with Huber
      loss. A batch of n samples has n^3 angles.
    - `"similarity"`: dot product of every pair, with rows of length 1, with mean
      squared error.
    - `"correlation"`: Gaussian kernel of every pair, with mean squared error.
    - `"neighbors"`: neighbor probability of every pair, with KL divergence.

    Park et al. combine `"distance"` with weight 1 and `"angle"` with weight 2.

    Sources: Park, Kim, Lu and Cho, "Relational Knowledge Distillation" (RKD), 2019
    (`"distance"`, `"angle"`); Tung and Mori, "Similarity-Preserving Knowledge
    Distillation", 2019; Peng, Jin, Liu, Li, Wu, Liu, Zhou and Zhang, "Correlation
    Congruence for Knowledge Distillation", 2019; Passalis and Tefas, "Learning Deep
    Representations with Probabilistic Knowledge Transfer" (PKT), 2018 (`"neighbors"`).

    Args:
        weight: Non-negative float, or a function of the step such as a
            `keras.optimizers.schedules.LearningRateSchedule`. Factor of the loss.
            Defaults to 1.
        layers: Layers to compare: `"auto"` pairs layers by shape and depth, `"last"`
            pairs the last hidden layers. Otherwise, pairs of (teacher, student) names.
            A name can be a path through nested models (`"encoder/dense"`) or a regular
            expression. An ending such as `":1"` selects the second output tensor.
            Defaults to `"last"`.
        kind: Relation to compare, one of those above. Defaults to `"distance"`.
        gamma: Positive float. Factor of the Gaussian kernel exp(-gamma |x - y|^2). Only
            for `kind="correlation"`. Defaults to 0.4.
        order: Positive integer. Number of Taylor terms of the kernel after the
            constant. Only for `kind="correlation"`. Defaults to 2.

    Raises:
        ConfigError: If a value is out of range, `layers` has another form, or `gamma`
            or `order` is set for another kind.

    Example:
        >>> losses = [Relational(), Relational(kind="angle", weight=2.0)]
        >>> losses[1].layers
        'last'
    """

    _: KW_ONLY
    layers: Layers = "last"
    kind: Annotated[str, tuple(KINDS)] = "distance"
    gamma: Annotated[float, Real(above=0)] = _GAMMA
    order: Annotated[int, Whole(1)] = _ORDER

    name: ClassVar[str] = "relational"

    def __post_init__(self) -> None:
        super().__post_init__()
        values = {"gamma": self.gamma, "order": self.order}
        if self.kind != "correlation" and values != {"gamma": _GAMMA, "order": _ORDER}:
            raise ConfigError(
                "The arguments `gamma` and `order` of Relational need kind="
                f'"correlation". Received: kind={self.kind!r}, gamma={self.gamma!r}, '
                f"order={self.order!r}."
            )

    def distances(self, teacher: Model, student: Model) -> Any:
        """Returns the distance per sample between its relations to the others."""
        relation, distance = KINDS[self.kind]
        options = (self.gamma, self.order) if self.kind == "correlation" else ()
        return distance(relation(teacher, *options), relation(student, *options))
