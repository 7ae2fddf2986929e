"""The model that trains a student on the outputs of its teachers."""

from dataclasses import replace
from inspect import signature
from typing import Any

import keras
from keras import ops

from kerasmem.checks import Real
from kerasmem.compression.distill.cache import split_answers
from kerasmem.compression.distill.comparison import (
    check_models,
    teacher_shares,
)
from kerasmem.compression.distill.features import FeatureReader, LastPass
from kerasmem.compression.distill.losses import Logits, as_losses
from kerasmem.compression.distill.losses.base import FeatureLoss
from kerasmem.compression.distill.objective import (
    Batch,
    Objective,
    padding_masks,
    padding_weights,
)
from kerasmem.compression.distill.pairing import probe_models
from kerasmem.compression.distill.schedules import (
    Number,
    ResumedSteps,
    ScheduledFactors,
)
from kerasmem.compression.distill.teacher_outputs import can_cache, with_cached_answers
from kerasmem.errors import ConfigError
from kerasmem.files.data import few_inputs
from kerasmem.types import Dataset, Model, Tensor, Tensors

TEMPERATURE = 4.0
HARD_WEIGHT = 0.1
SHARE_OF_LABELS = Real("a fraction of the loss,", least=0, most=1)


class Distiller(keras.Model):
    """A model that trains a student by knowledge distillation.

    The loss of a batch is `hard_weight * student_loss + (1 - hard_weight) *
    distillation_loss`, plus the regularization losses of the student. Without labels or
    a compiled loss, only the distillation loss is used. The distillation loss is the
    weighted sum of `losses`, and with several teachers the weighted sum over teachers.
    Sample weights apply to both terms. Without sample weights, positions masked by an
    input named `padding_mask` are ignored in both.

    Compile and fit the distiller like any model. It trains `student` in place. The
    teacher runs in inference mode once per step. `fit` reports `loss`, `student_loss`
    (on the labels), `distillation_loss` and the metrics.
    `save` and `save_weights`, which callbacks use, write only the student.

    Source: Hinton, Vinyals and Dean, "Distilling the Knowledge in a Neural Network",
    2015.

    Args:
        teacher: A built `keras.Model`, or a list of them. It must accept the inputs of
            the student and return outputs of the same shape.
        student: The `keras.Model` to train.
        losses: One or several losses of `km.distillation`, as objects, names or dicts.
            Defaults to `Logits`.
        temperature: Temperature of `Logits`, ignored if `losses` is given: a positive
            float or a schedule. Higher values emphasize small probabilities. Defaults
            to 4.
        hard_weight: Float in [0, 1]. Weight of the loss on the labels. Defaults to 0.1.
        teacher_weights: List with a weight for each teacher. `None` weights all
            teachers equally. Defaults to `None`.
        sample: A few inputs. Only needed for losses on layers if the input shape of a
            model is unknown.
        name: Name of the distiller. Defaults to `"distiller"`.

    Raises:
        ConfigError: If an argument is invalid.
        ModelError: If the teacher has no weights, or lacks a layer that a loss names.
            In the first step, if the outputs of the models are incompatible.

    Example:
        >>> layers = [keras.layers.Dense(8), keras.layers.Dense(2)]
        >>> teacher = keras.Sequential([keras.Input((4,)), *layers])
        >>> student = keras.Sequential([keras.Input((4,)), keras.layers.Dense(2)])
        >>> distiller = Distiller(teacher, student)
        >>> distiller.compile("sgd", "mse")
        >>> x, y = keras.ops.ones((8, 4)), keras.ops.ones((8, 2))
        >>> history = distiller.fit(x, y, verbose=0).history
        >>> sorted(history)
        ['distillation_loss', 'loss', 'student_loss']
    """

    def __init__(  # noqa: PLR0913  (named in the contract)
        self,
        teacher: Model,
        student: Model,
        *,
        losses: Any = None,
        temperature: Number = TEMPERATURE,
        hard_weight: float = HARD_WEIGHT,
        teacher_weights: Any = None,
        sample: Any = None,
        name: str = "distiller",
    ) -> None:
        teachers = list(teacher) if isinstance(teacher, (list, tuple)) else [teacher]
        check_models(teachers, student)
        hard_weight = SHARE_OF_LABELS.check("Distiller", "hard_weight", hard_weight)
        super().__init__(name=name, dtype=student.dtype_policy, autocast=False)
        self.student = student
        self.hard_weight = hard_weight
        self.distillation_losses = (
            (Logits(temperature=temperature),) if losses is None else as_losses(losses)
        )
        self._shares = teacher_shares(teachers, teacher_weights)
        self._factors = ScheduledFactors(self.distillation_losses)
        looks_inside = any(
            isinstance(loss, FeatureLoss) for loss in self.distillation_losses
        )
        self._objectives = [
            Objective(
                one,
                student,
                self.distillation_losses,
                probe_models(one, student, sample) if looks_inside else None,
                self._factors,
            )
            for one in teachers
        ]
        refs = [ref for objective in self._objectives for ref in objective.student_refs]
        self._reader = FeatureReader(student, list(dict.fromkeys(refs)))
        self._last_pass = LastPass()
        self._student_loss = keras.metrics.Mean(name="student_loss")
        self._distillation_loss = keras.metrics.Mean(name="distillation_loss")
        # Callbacks need the weights of the student before the first step.
        self.built = student.built

    @property
    def teacher(self) -> Any:
        """The first teacher."""
        return self.teachers[0]

    @property
    def teachers(self) -> list[Any]:
        """All teachers."""
        return [objective.frozen.model for objective in self._objectives]

    @property
    def output_names(self) -> list[str]:
        """Output names of the student, for losses and metrics by name."""
        return self.student.output_names

    @property
    def metrics(self) -> list[Any]:
        """Metrics that `fit` reports; `student_loss` only with a compiled loss."""
        all_metrics = super().metrics
        return (
            all_metrics
            if self.loss
            else [m for m in all_metrics if m is not self._student_loss]
        )

    def answered(
        self, data: Dataset, validation_data: Dataset, cache: Any
    ) -> tuple[Any, Any]:
        """Adds cached teacher outputs to the inputs, computing missing ones.

        Validation data that cannot be cached is returned unchanged. The teachers then
        run on it in every epoch.

        Args:
            data: Arrays or a `keras.utils.PyDataset`.
            validation_data: Validation samples in any form, or `None`.
            cache: A `km.distillation.Cache`.

        Returns:
            A tuple of training and validation data for `fit`.

        Raises:
            ConfigError: If `data` has another form.
            DataError: If the cache belongs to another teacher or other data.
        """

        def with_answers(data: Dataset, part: str) -> Any:
            predictions = self.student(few_inputs(self.student, data), training=False)
            batch = self._batch(predictions)
            return with_cached_answers(data, self._objectives, batch, cache, part)

        if not can_cache(data):
            raise ConfigError(
                "A cache needs arrays or a keras.utils.PyDataset, because it stores "
                f"outputs by sample. Received: data of type {type(data).__name__}. "
                "Next: distill without cache=."
            )
        data = with_answers(data, "")
        if validation_data is not None:
            if not can_cache(validation_data):
                return data, validation_data
            validation_data = with_answers(validation_data, "validation")
        # The cache replaces the teachers, so their copies can be freed.
        for objective in self._objectives:
            objective.state.clear()
        return data, validation_data

    def call(self, inputs: Tensors, training: bool | None = None) -> Any:  # noqa: FBT001
        """Returns the outputs of the student."""
        x, _ = split_answers(inputs)
        outputs, features = self._reader(x, training=training)
        # Keras calls `compute_loss` next, with the same outputs.
        self._last_pass.keep(outputs, features)
        return outputs

    def compute_loss(
        self,
        x: Tensor = None,
        y: Tensor = None,
        y_pred: Tensor = None,
        sample_weight: Tensor = None,
        training: bool = True,  # noqa: FBT001, FBT002  (the signature is Keras's)
    ) -> Any:
        """Returns the loss of a batch; `y_pred` contains the student's outputs."""
        x, answers = split_answers(x)
        batch = self._batch(y_pred, y, sample_weight)
        if sample_weight is None:
            masks = padding_masks(x)
            sample_weight = padding_weights(masks, y_pred)
            batch = replace(batch, padding=masks, places=sample_weight)
        soft = self._distance(x, batch, answers, training)
        if training:
            self._factors.advance()
        samples = ops.shape(keras.tree.flatten(y_pred)[0])[0]
        self._distillation_loss.update_state(soft, sample_weight=samples)
        soft += sum(ops.sum(loss) for loss in self.losses)
        if y is None or not self.loss:
            return soft
        hard = super().compute_loss(x, y, y_pred, sample_weight, training)
        self._student_loss.update_state(hard, sample_weight=samples)
        return self.hard_weight * hard + (1 - self.hard_weight) * soft

    def fit(self, *arguments: Any, **options: Any) -> Any:
        """Trains the student. Takes the arguments of `keras.Model.fit`."""
        options = signature(super().fit).bind(*arguments, **options).arguments
        callbacks = options.pop("callbacks", None)
        if not isinstance(callbacks, keras.callbacks.CallbackList):
            steps = ResumedSteps(self._factors)
            callbacks = [*keras.tree.flatten(callbacks or []), steps]
        return super().fit(**options, callbacks=callbacks)

    def save(self, filepath: Any, **options: Any) -> None:
        """Saves the student. Takes the arguments of `keras.Model.save`."""
        self.student.save(filepath, **options)

    def save_weights(self, filepath: Any, **options: Any) -> None:
        """Saves the weights of the student."""
        self.student.save_weights(filepath, **options)

    def load_weights(self, filepath: Any, **options: Any) -> None:
        """Loads the weights of the student."""
        self.student.load_weights(filepath, **options)

    def _batch(
        self, y_pred: Tensor, y: Tensor = None, sample_weight: Tensor = None
    ) -> Batch:
        loss = self.loss or self.student.loss
        return Batch(None, y_pred, y, sample_weight, self.student, loss)

    def _distance(self, x: Tensor, batch: Batch, answers: Any, training: Any) -> Any:
        features = self._last_pass.take(batch.predictions)
        if features is None and self._reader.refs:
            # Other outputs, for example when Keras builds its metrics symbolically.
            _, features = self._reader(x, training=training)
        cached_answers = answers or [None] * len(self._objectives)
        answered_batches = [
            objective.teacher_batch(x, batch, answers_of_one)
            for objective, answers_of_one in zip(
                self._objectives, cached_answers, strict=True
            )
        ]
        return sum(
            share * objective.distance(*teacher_batch, features or {})
            for share, objective, teacher_batch in zip(
                self._shares, self._objectives, answered_batches, strict=True
            )
        )
