"""Distillation loss for one teacher."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import keras
from keras import ops

from kerasmem.compression.distill.cache import all_logits
from kerasmem.compression.distill.comparison import (
    Comparable,
    Comparison,
    Reduced,
    check_outputs,
    comparable,
)
from kerasmem.compression.distill.features import FeatureRef, FrozenTeacher
from kerasmem.compression.distill.losses.base import (
    Answers,
    DistillationLoss,
    FeatureLoss,
    OutputLoss,
)
from kerasmem.compression.distill.pairing import Probe, pair_layers
from kerasmem.compression.distill.schedules import ScheduledFactors
from kerasmem.errors import ConfigError, ModelError
from kerasmem.graph.outputs import OutputForm, describe_outputs
from kerasmem.types import Model, Tensor, Tensors

_KEY = "padding_mask"

Masks = dict[str, Any]
"""Boolean masks of shape (batch, length) by prefix of the input name: "", "encoder_" or
"decoder_"."""


@dataclass(frozen=True)
class Batch:
    """Outputs and labels of one batch.

    Args:
        answers: Teacher outputs, or `None` if no loss needs them.
        predictions: Student outputs.
        labels: Labels or `None`.
        weight: Sample weights or `None`.
        student: The student model.
        loss: Loss of the student on the labels, or `None`.
        cached: Whether `answers` come from a cache, which stores logits or values.
        padding: Sequence masks. Empty if the data has sample weights.
        places: Weights from the masks, in the structure of the outputs, or `None`.
    """

    answers: Any
    predictions: Any
    labels: Any
    weight: Any
    student: Any
    loss: Any
    cached: bool = False
    padding: Masks = field(default_factory=dict)
    places: Any = None


class Objective(keras.layers.Layer):
    """One teacher and its comparisons with the student.

    `probes` contains the layer shapes of both models, or is `None` without feature
    losses.
    """

    def __init__(
        self,
        teacher: Model,
        student: Model,
        losses: Sequence[DistillationLoss],
        probes: tuple[Probe, Probe] | None,
        factors: ScheduledFactors,
    ) -> None:
        super().__init__(dtype=student.dtype_policy, autocast=False)
        self.losses_on_outputs = [x for x in losses if isinstance(x, OutputLoss)]
        self.comparisons: list[Comparison] = []
        if probes is not None:
            for loss in losses:
                if isinstance(loss, FeatureLoss):
                    self.comparisons += _comparisons(loss, (teacher, student), probes)
        refs = dict.fromkeys(c.teacher_ref for c in self.comparisons)
        self.frozen = FrozenTeacher(teacher, list(refs))
        self.state = self.frozen.step_state()
        self.factors = factors
        self.built = True

    @property
    def student_refs(self) -> list[FeatureRef]:
        """Student features that the losses need, without duplicates."""
        return list(dict.fromkeys(c.student_ref for c in self.comparisons))

    def teacher_batch(
        self, x: Tensor, batch: Batch, cached: Sequence[Any] | None
    ) -> tuple[Batch, dict[FeatureRef, Any]]:
        """Returns the batch with teacher outputs, and the teacher features.

        The teacher runs only if there are no cached outputs.
        """
        if cached is None:
            answers, teacher_features = self.frozen.answer(x, self.state)
        else:
            answers, teacher_features = self._unpacked(cached, batch.predictions)
        return replace(
            batch, answers=answers, cached=cached is not None
        ), teacher_features

    def distance(
        self,
        batch: Batch,
        teacher_features: dict[FeatureRef, Any],
        student_features: dict[FeatureRef, Any],
    ) -> Any:
        """Returns the weighted sum of all losses and layer pairs for a batch."""
        total = self._on_outputs(batch) if self.losses_on_outputs else 0.0
        for comparison in self.comparisons:
            refs = comparison.teacher_ref, comparison.student_ref
            features = (
                teacher_features[refs[0]],
                comparison.projected(student_features[refs[1]]),
            )
            pair = [
                without_padding(batch.padding, ref.path, ops.cast(f, "float32"))
                for ref, f in zip(refs, features, strict=True)
            ]
            # Reduced in two steps, because time step masks do not fit sample weights.
            each = comparison.loss.distances(*pair)
            value = Reduced(lambda _, same: same)(each, each, _per_sample(batch.weight))
            total += self.factors.current(comparison.loss, "weight") * value
        return total

    def _unpacked(
        self, cached: Sequence[Any], like: Any
    ) -> tuple[Any, dict[FeatureRef, Any]]:
        count = len(cached) - len(self.frozen.refs)
        features = dict(zip(self.frozen.refs, cached[count:], strict=True))
        if not count:
            return None, features
        leaves = keras.tree.flatten(like)
        outputs = [
            all_logits(answer, leaf.shape[-1])
            for answer, leaf in zip(cached[:count], leaves, strict=True)
        ]
        return keras.tree.pack_sequence_as(like, outputs), features

    def _on_outputs(self, batch: Batch) -> Any:
        check_outputs(batch.answers, batch.predictions)
        answers = keras.tree.flatten(batch.answers)
        predictions = keras.tree.flatten(batch.predictions)
        ways = self.comparables(batch)
        labels = _labels(batch, len(predictions))
        weights = keras.tree.flatten(
            batch.weight if batch.places is None else batch.places
        )
        if len(weights) != len(predictions):
            weights = [batch.weight] * len(predictions)
        total = 0.0
        for loss in self.losses_on_outputs:
            factor = self.factors.current(loss, "weight")
            temperature = self.factors.current(loss, "temperature")
            for way, label, *values in zip(
                ways, labels, answers, predictions, weights, strict=True
            ):
                total += factor * _soft(loss, way, label, temperature)(*values)
        return total

    def comparables(self, batch: Batch) -> list[Comparable]:
        """Returns the conversion for each pair of outputs."""
        teacher = self.frozen.model
        pairs = zip(
            describe_outputs(teacher, teacher.loss, batch.answers),
            describe_outputs(batch.student, batch.loss, batch.predictions),
            strict=True,
        )
        ways = [comparable(*pair) for pair in pairs]
        return (
            [replace(way, teacher=OutputForm.LINEAR) for way in ways]
            if batch.cached
            else ways
        )


def _comparisons(
    loss: FeatureLoss, models: tuple[Any, Any], probes: tuple[Probe, Probe]
) -> list[Comparison]:
    comparisons = []
    for teacher, student in pair_layers(loss, models, probes):
        shapes = probes[0].shape(teacher), probes[1].shape(student)
        policy = models[1].dtype_policy
        comparisons.append(Comparison(loss, (teacher, student), shapes, policy))
    return comparisons


def _soft(
    loss: OutputLoss, way: Comparable, labels: Tensor, temperature: Any
) -> Callable[..., Any]:
    """Returns the reduced loss for one pair of outputs."""
    if way.task not in loss.tasks:
        raise ModelError(
            f"{type(loss).__name__} needs the class outputs of a classifier. Received: "
            f"an output that is {way.task.value}. Next: use Logits for it."
        )
    if loss.needs_labels and labels is None:
        raise ConfigError(
            f"{type(loss).__name__} needs labels, but the data has none. Next: give "
            "(x, y), or use Logits."
        )

    def distances(teacher_features: Any, student_features: Any) -> Any:
        values = way.values(teacher_features, student_features)
        return loss.distances(Answers(way.task, *values, temperature, labels))

    return Reduced(distances)


def _labels(batch: Batch, count: int) -> list[Any]:
    labels = batch.labels
    if isinstance(labels, dict) and not isinstance(batch.predictions, dict):
        labels = [labels.get(name) for name in batch.student.output_names]
    flat = keras.tree.flatten(labels)
    return flat if len(flat) == count else [None] * count


def _per_sample(weight: Any) -> Any:
    weights = [w for w in keras.tree.flatten(weight) if w is not None]
    if not weights:
        return None
    rows = [ops.reshape(w, (ops.shape(w)[0], -1)) for w in weights]
    return ops.mean(ops.concatenate(rows, axis=-1), axis=-1)


def padding_masks(x: Tensor) -> Masks:
    """Returns the padding masks of named inputs by prefix."""
    if not isinstance(x, Mapping):
        return {}
    return {k.removesuffix(_KEY): m for k, m in x.items() if str(k).endswith(_KEY)}


def padding_weights(masks: Masks, outputs: Tensors) -> Any:
    """Returns sample weights in the structure of the outputs, `None` without masks.

    Like Keras masks, padding has weight 0 and the other weights are scaled up.
    """
    names = outputs if isinstance(outputs, Mapping) else {"": outputs}
    by_output = {
        name: keras.tree.map_structure(lambda y, n=name: _weights(masks, n, y), each)
        for name, each in names.items()
    }
    if all(weight is None for weight in keras.tree.flatten(by_output)):
        return None
    flat = [
        ops.ones(ops.shape(y)[:-1]) if weight is None else weight
        for y, weight in zip(
            keras.tree.flatten(outputs), keras.tree.flatten(by_output), strict=True
        )
    ]
    return keras.tree.pack_sequence_as(outputs, flat)


def without_padding(masks: Masks, path: str, feature: Any) -> Any:
    """Returns a feature of shape (batch, length, ...) with zeros at padding.

    The layer path selects between encoder and decoder masks. A feature of another
    length is returned unchanged.
    """
    mask = _mask(masks, path, feature)
    if mask is None:
        return feature
    mask = ops.reshape(mask, (*ops.shape(mask), *[1] * (len(feature.shape) - 2)))
    return ops.where(mask, feature, ops.zeros_like(feature))


def _weights(masks: Masks, name: str, output: Tensor) -> Any:
    # The outputs of an encoder-decoder model follow the decoder sequence.
    mask = _mask(masks, name or "decoder_", output)
    if mask is None:
        return None
    mask = ops.cast(mask, "float32")
    return mask / ops.maximum(ops.mean(mask), keras.config.epsilon())


def _mask(masks: Masks, path: str, tensor: Tensor) -> Any:
    own_masks = [mask for part, mask in masks.items() if part and part[:-1] in path]
    mask = own_masks[0] if len(own_masks) == 1 else masks.get("")
    if mask is None or len(tensor.shape) < 3 or mask.shape[1] != tensor.shape[1]:
        return None
    return ops.cast(mask, "bool")
