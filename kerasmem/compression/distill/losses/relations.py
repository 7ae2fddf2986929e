"""Losses on the relations of samples in a batch, as their features show them.

Sources: Frederick Tung, Greg Mori: Similarity-Preserving Knowledge Distillation, 2019.
Wonpyo Park, Dongju Kim, Yan Lu, Minsu Cho: Relational Knowledge Distillation, 2019.
Baoyun Peng, Xiao Jin, Jiaheng Liu, Dongsheng Li, Yichao Wu, Yu Liu, Shunfeng Zhou,
Zhaoning Zhang: Correlation Congruence for Knowledge Distillation, 2019. Nikolaos
Passalis, Anastasios Tefas: Learning Deep Representations with Probabilistic Knowledge
Transfer, 2018. Yonglong Tian, Dilip Krishnan, Phillip Isola: Contrastive Representation
Distillation, 2020.
"""

import math
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


def similarities(features: Any) -> Any:
    """Return the dot products of a batch's features, each row of length 1."""
    return unit(products(flat(features)))


@dataclass(frozen=True)
class SimilarityPreserving(FeatureLoss):
    """Similarity-preserving distillation: samples alike to the teacher stay alike.

    The value is the mean squared difference of the two (batch, batch) matrices of
    similarities.

    Source: Tung and Mori, "Similarity-Preserving Knowledge Distillation", 2019.

    Args:
        weight: factor of the loss, from 0: a number or a schedule.
        layers: which layers are compared: `"auto"`, by shape and depth; `"last"`, the
            last ones before the outputs; or pairs of names, the teacher's first. A name
            may be a path through nested models (`"encoder/dense"`), a regular
            expression, and end in `":1"` for the second tensor of a layer.

    Raises:
        ConfigError: if a value is out of its range, or `layers` are no pairs of names.

    Example:
        >>> SimilarityPreserving(weight=3000.0).layers
        'last'
    """

    _: KW_ONLY
    layers: Layers = "last"

    name: ClassVar[str] = "similarity_preserving"

    def distances(self, teacher: Any, student: Any) -> Any:
        """Return one value per sample: its row of the matrix."""
        difference = similarities(teacher) - similarities(student)
        return ops.sum(ops.square(difference), axis=-1) / batch_size(teacher)


def distances_between(features: Any) -> Any:
    """Return the distance of every pair over the mean of all, (batch, batch)."""
    vectors = flat(features)
    away = off_diagonal(vectors)
    squares = ops.sum(ops.square(_differences(vectors)), axis=-1)
    lengths = away * ops.sqrt(ops.maximum(squares, SMALLEST))
    mean = ops.sum(lengths) / ops.maximum(ops.sum(away), 1.0)
    return lengths / ops.maximum(mean, SMALLEST)


def angles_at(features: Any) -> Any:
    """Return the cosine at every sample between every two others, (batch,) * 3."""
    edges = unit(_differences(flat(features)))
    return ops.matmul(edges, ops.transpose(edges, (0, 2, 1)))


@dataclass(frozen=True)
class Relational(FeatureLoss):
    """Relational knowledge distillation (RKD): distances and angles between samples.

    Huber's loss compares each of them, averaged over all pairs and triples of different
    samples. A batch of n takes n^3 angles.

    Source: Park, Kim, Lu and Cho, "Relational Knowledge Distillation", 2019.

    Args:
        weight: factor of the loss, from 0: a number or a schedule.
        layers: which layers are compared: `"auto"`, by shape and depth; `"last"`, the
            last ones before the outputs; or pairs of names, the teacher's first. A name
            may be a path through nested models (`"encoder/dense"`), a regular
            expression, and end in `":1"` for the second tensor of a layer.
        distance: weight of the distances.
        angle: weight of the angles; 0 leaves them out.

    Raises:
        ConfigError: if a value is out of its range, or `layers` are no pairs of names.

    Example:
        >>> Relational(angle=0.0).distance
        1.0
    """

    _: KW_ONLY
    layers: Layers = "last"
    distance: Annotated[float, Real()] = 1.0
    angle: Annotated[float, Real()] = 2.0

    name: ClassVar[str] = "relational"

    def distances(self, teacher: Any, student: Any) -> Any:
        """Return one value per sample: what is seen from it."""
        pairs = huber(distances_between(teacher) - distances_between(student))
        count = batch_size(teacher)
        value = self.distance * ops.sum(pairs, axis=-1) / ops.maximum(count - 1, 1.0)
        if not self.angle:
            return value
        angles = huber(angles_at(teacher) - angles_at(student))
        angles = angles * off_diagonal(teacher)
        triples = ops.maximum((count - 1) * (count - 2), 1.0)
        return value + self.angle * ops.sum(angles, axis=(1, 2)) / triples


def _differences(vectors: Any) -> Any:
    return ops.expand_dims(vectors, 0) - ops.expand_dims(vectors, 1)


def correlations(features: Any, gamma: float, order: int) -> Any:
    """Return the kernel of every pair of samples as a Taylor series, (batch, batch).

    Args:
        features: (batch, ...); they are brought to length 1.
        gamma: of the kernel exp(-gamma |x - y|^2).
        order: the last power of the dot product in the series.
    """
    dots = products(unit(flat(features)))
    series = ops.ones_like(dots)
    for power in range(order, 0, -1):  # from the inside out: no power of 0 is taken
        series = 1 + 2 * gamma / power * dots * series
    return math.exp(-2 * gamma) * series


@dataclass(frozen=True)
class Correlation(FeatureLoss):
    """Correlation congruence: the correlation of samples in a Gaussian kernel.

    The value is the mean squared difference of the two (batch, batch) matrices.

    Source: Peng, Jin, Liu, Li, Wu, Liu, Zhou and Zhang, "Correlation Congruence for
    Knowledge Distillation", 2019.

    Args:
        weight: factor of the loss, from 0: a number or a schedule.
        layers: which layers are compared: `"auto"`, by shape and depth; `"last"`, the
            last ones before the outputs; or pairs of names, the teacher's first. A name
            may be a path through nested models (`"encoder/dense"`), a regular
            expression, and end in `":1"` for the second tensor of a layer.
        gamma: of the Gaussian kernel exp(-gamma |x - y|^2), above 0.
        order: of its Taylor series, from 1.

    Raises:
        ConfigError: if a value is out of its range, or `layers` are no pairs of names.

    Example:
        >>> Correlation(order=3).gamma
        0.4
    """

    _: KW_ONLY
    layers: Layers = "last"
    gamma: Annotated[float, Real(above=0)] = 0.4
    order: Annotated[int, Whole(1)] = 2

    name: ClassVar[str] = "correlation"

    def distances(self, teacher: Any, student: Any) -> Any:
        """Return one value per sample: its row of the matrix."""
        of_teacher, of_student = (
            correlations(f, self.gamma, self.order) for f in (teacher, student)
        )
        return ops.sum(ops.square(of_teacher - of_student), axis=-1) / batch_size(
            teacher
        )


_SMALLEST = 1e-7


def neighbor_probabilities(features: Any) -> Any:
    """Return the conditional probabilities of all pairs, (batch, batch), rows sum to 1.

    They come from the cosine similarity, moved into [0, 1]; the diagonal is 0.
    """
    kernel = (products(unit(flat(features))) + 1) / 2 * off_diagonal(features)
    return kernel / ops.maximum(ops.sum(kernel, axis=-1, keepdims=True), _SMALLEST)


@dataclass(frozen=True)
class ProbabilisticKnowledgeTransfer(FeatureLoss):
    """Probabilistic knowledge transfer (PKT): the divergence of neighbor probabilities.

    The value is the KL divergence of the two conditional distributions over the other
    samples of the batch, averaged over the samples.

    Source: Passalis and Tefas, "Learning Deep Representations with Probabilistic
    Knowledge Transfer", 2018.

    Args:
        weight: factor of the loss, from 0: a number or a schedule.
        layers: which layers are compared: `"auto"`, by shape and depth; `"last"`, the
            last ones before the outputs; or pairs of names, the teacher's first. A name
            may be a path through nested models (`"encoder/dense"`), a regular
            expression, and end in `":1"` for the second tensor of a layer.

    Raises:
        ConfigError: if a value is out of its range, or `layers` are no pairs of names.

    Example:
        >>> ProbabilisticKnowledgeTransfer().name
        'probabilistic_knowledge_transfer'
    """

    _: KW_ONLY
    layers: Layers = "last"

    name: ClassVar[str] = "probabilistic_knowledge_transfer"

    def distances(self, teacher: Any, student: Any) -> Any:
        """Return one value per sample: the divergence of its row."""
        of_teacher, of_student = (
            ops.maximum(neighbor_probabilities(f), _SMALLEST)
            for f in (teacher, student)
        )
        away = off_diagonal(teacher)
        return ops.sum(
            away * of_teacher * (ops.log(of_teacher) - ops.log(of_student)), axis=-1
        )


def contrast(teacher: Any, student: Any, temperature: float) -> Any:
    """Return minus the log share of each sample's own partner (InfoNCE).

    Args:
        teacher: embeddings, (batch, dimension).
        student: likewise.
        temperature: of the softmax over the batch, above 0.
    """
    teacher, student = unit(flat(teacher)), unit(flat(student))
    alike = ops.matmul(student, ops.transpose(teacher)) / temperature
    own = ops.sum(alike * (1.0 - off_diagonal(student)), axis=-1)
    return ops.logsumexp(alike, axis=-1) - own


@dataclass(frozen=True)
class Contrastive(FeatureLoss):
    """Contrastive representation distillation (CRD), with in-batch negatives.

    Trained dense layers project both features onto one space. The negatives are the
    other samples of the batch, compared by InfoNCE, which the paper has as a variant.
    The paper's memory bank of negatives is left out, so large batches help.

    Source: Tian, Krishnan and Isola, "Contrastive Representation Distillation", 2020.

    Args:
        weight: factor of the loss, from 0: a number or a schedule.
        layers: which layers are compared: `"auto"`, by shape and depth; `"last"`, the
            last ones before the outputs; or pairs of names, the teacher's first. A name
            may be a path through nested models (`"encoder/dense"`), a regular
            expression, and end in `":1"` for the second tensor of a layer.
        dimension: of the common space, from 1.
        temperature: of the softmax over the batch, above 0.

    Raises:
        ConfigError: if a value is out of its range, or `layers` are no pairs of names.

    Example:
        >>> Contrastive(dimension=64).temperature
        0.07
    """

    _: KW_ONLY
    layers: Layers = "last"
    dimension: Annotated[int, Whole(1)] = 128
    temperature: Annotated[float, Real(above=0)] = 0.07

    name: ClassVar[str] = "contrastive"
    heads: ClassVar[str] = "both"

    def distances(self, teacher: Any, student: Any) -> Any:
        """Return one value per sample."""
        return contrast(teacher, student, self.temperature)

    def width(self, teacher: tuple[Any, ...]) -> int:
        """Return the dimension of the common space."""
        del teacher
        return self.dimension
