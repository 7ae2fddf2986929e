"""The model that is trained while a student learns from a teacher."""

import contextlib
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import keras
from keras import ops

from kerasmem.backends.seeding import generators_kept
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
    TeacherMetrics,
    teacher_answers,
)
from kerasmem.compression.distill.pairing import probe_models
from kerasmem.compression.distill.sample_weights import (
    confidences,
    padding_masks,
    padding_weights,
    weighted,
)
from kerasmem.compression.distill.schedules import Number, ScheduledFactors
from kerasmem.compression.distill.teacher_outputs import can_cache, with_cached_answers
from kerasmem.errors import ConfigError
from kerasmem.files.data import few_inputs
from kerasmem.types import Dataset, Model, Tensor, Tensors

TEMPERATURE = 4.0
HARD_WEIGHT = 0.1
SHARE_OF_LABELS = Real("a share of the loss,", least=0, most=1)


class Distiller(keras.Model):
    """A model that trains a student by knowledge distillation.

    The loss of a batch is `hard_weight` times the student's own loss on the labels
    plus `1 - hard_weight` times the distance to the teacher, and, in full, whatever
    the student's layers add (regularizers). Without labels, or compiled without a
    loss, the teacher counts alone. Sample weights count in both; without any, places
    of sequences that an input named `padding_mask` marks as padding count in neither.
    The distance is the sum of `losses`, each by its weight; with several teachers, by
    theirs.

    Compile and fit it like any model. The student given is the one that is trained;
    the teacher is only asked, once per step, in inference mode. What `fit` reports:
    `loss`, `student_loss` (on the labels), `distillation_loss` and the metrics; with
    `validation_data` that can be read again also what the teacher does by the metrics,
    judged once (`val_teacher_accuracy`; `val_teacher_0_accuracy` and so on of several).
    `save` and `save_weights`, which callbacks use, write the student alone.

    Source: Hinton, Vinyals and Dean, "Distilling the Knowledge in a Neural Network",
    2015.

    Args:
        teacher: a built model, or a list of them. It may differ from the student in
            everything but the inputs that it takes and the shape of its outputs.
        student: the model to train.
        losses: one or several of `km.distillation`, as objects, names or plain data;
            None for `Logits` alone.
        temperature: of `Logits` where no losses are given, above 0: a number or a
            schedule; higher shows the student more of the small probabilities.
        hard_weight: share of the labels in the loss, in [0, 1].
        teacher_weights: what each of several teachers counts; None for all the same;
            `"confidence"` for less where its answer to a sample is more wrong.
        sample: some inputs, where layers are compared and a model does not tell the
            shape of its inputs.
        name: of this model.

    Raises:
        ConfigError: if an argument has a value that cannot be used.
        ModelError: if the teacher has no weights, or lacks a layer that a loss names;
            at the first step, if the outputs of the models do not fit each other.

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
        self._judged: int | None = None  # the teacher that `evaluate` judges now
        self._answers_are_cut = False
        self._student_loss = keras.metrics.Mean(name="student_loss")
        self._distillation_loss = keras.metrics.Mean(name="distillation_loss")
        # Its weights are the student's, so callbacks find them before the first step.
        self.built = student.built

    @property
    def teacher(self) -> Any:
        """The model that is asked, the first of several."""
        return self.teachers[0]

    @property
    def teachers(self) -> list[Any]:
        """The models that are asked, as they were handed in."""
        return [objective.frozen.model for objective in self._objectives]

    @property
    def output_names(self) -> list[str]:
        """Names of the student's outputs, by which losses and metrics are assigned."""
        return self.student.output_names

    @property
    def metrics(self) -> list[Any]:
        """What `fit` reports; the loss on labels only where there is one."""
        all_metrics = super().metrics
        return (
            all_metrics
            if self.loss
            else [m for m in all_metrics if m is not self._student_loss]
        )

    def fit(
        self,
        x: Tensor = None,
        y: Tensor = None,
        batch_size: int | None = None,
        epochs: int = 1,
        verbose: Any = "auto",
        callbacks: Any = None,
        **options: Any,
    ) -> Any:
        """Train the student, as `keras.Model.fit` does."""
        start = options.get("initial_epoch", 0)
        teacher_metrics = (
            self._judge_teachers(batch_size, options) if epochs > start else {}
        )
        own = [TeacherMetrics(teacher_metrics)]
        if isinstance(callbacks, keras.callbacks.CallbackList):
            callbacks.callbacks[:0] = own
        else:
            callbacks = [*own, *keras.tree.flatten(callbacks or [])]
        return super().fit(x, y, batch_size, epochs, verbose, callbacks, **options)

    def answered(
        self, data: Dataset, validation_data: Dataset, cache: Any
    ) -> tuple[Any, Any]:
        """Return data for `fit` with the teachers' answers beside the inputs.

        Answers that the cache has not are asked for and kept. Validation data that
        cannot be cached comes back as it is: the teachers are asked in every epoch.

        Args:
            data: arrays, or a `keras.utils.PyDataset`.
            validation_data: of any form, or None.
            cache: a `km.distillation.Cache`.

        Returns:
            Data and validation data, for `fit`.

        Raises:
            ConfigError: if `data` is of another form.
            DataError: if the cache is of another teacher, or of other data.
        """

        def with_answers(data: Dataset, part: str) -> Any:
            predictions = self.student(few_inputs(self.student, data), training=False)
            batch = self._batch(predictions)
            return with_cached_answers(data, self._objectives, batch, cache, part)

        if not can_cache(data):
            raise ConfigError(
                "Answers are kept by sample, so a cache takes arrays or a "
                f"keras.utils.PyDataset. Received: data of type {type(data).__name__}. "
                "Next: distill without cache=."
            )
        self._answers_are_cut = cache.top_k is not None
        data = with_answers(data, "")
        if validation_data is not None:
            if not can_cache(validation_data):
                return data, validation_data
            validation_data = with_answers(validation_data, "validation")
        # Nobody asks the teachers in a step any more: their copies may go.
        for objective in self._objectives:
            objective.state.clear()
        return data, validation_data

    def call(self, inputs: Tensors, training: bool | None = None) -> Any:  # noqa: FBT001
        """Return the student's outputs."""
        x, answers = split_answers(inputs)
        outputs, features = self._reader(x, training=training)
        if self._judged is not None:
            answers_of_teacher = None if answers is None else answers[self._judged]
            objective = self._objectives[self._judged]
            return teacher_answers(
                objective, x, self._batch(outputs), answers_of_teacher
            )
        # For `compute_loss`, which Keras calls next with the same outputs.
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
        """Return the loss of one batch; `y_pred` are the student's outputs for `x`."""
        if self._judged is not None:
            return ops.zeros(())
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

    def save(self, filepath: Any, **options: Any) -> None:
        """Write the student, as `keras.Model.save` does."""
        self.student.save(filepath, **options)

    def save_weights(self, filepath: Any, **options: Any) -> None:
        """Write the student's weights, as `keras.Model.save_weights` does."""
        self.student.save_weights(filepath, **options)

    def load_weights(self, filepath: Any, **options: Any) -> None:
        """Read the student's weights, as `keras.Model.load_weights` does."""
        self.student.load_weights(filepath, **options)

    def _batch(
        self, y_pred: Tensor, y: Tensor = None, sample_weight: Tensor = None
    ) -> Batch:
        loss = self.loss or self.student.loss
        return Batch(None, y_pred, y, sample_weight, self.student, loss)

    def _distance(self, x: Tensor, batch: Batch, answers: Any, training: Any) -> Any:
        features = self._last_pass.take(batch.predictions)
        if features is None and self._reader.refs:
            # These outputs were not the last ones made here: Keras builds its metrics
            # on symbols, for one.
            _, features = self._reader(x, training=training)
        cached_answers = answers or [None] * len(self._objectives)
        answered_batches = [
            objective.teacher_batch(x, batch, answers_of_one)
            for objective, answers_of_one in zip(
                self._objectives, cached_answers, strict=True
            )
        ]
        shares = self._shares
        if shares is None:
            answered_batches = self._by_confidence(answered_batches)
            shares = [1.0] * len(answered_batches)
        return sum(
            share * objective.distance(*teacher_batch, features or {})
            for share, objective, teacher_batch in zip(
                shares, self._objectives, answered_batches, strict=True
            )
        )

    def _judge_teachers(
        self, batch_size: int | None, options: dict[str, Any]
    ) -> dict[str, float]:
        data = options.get("validation_data")
        if data is None or isinstance(data, Iterator) or self._answers_are_cut:
            return {}
        if all(metric.name.endswith("loss") for metric in self.metrics):
            return {}
        x, y, weight = data, None, None
        if isinstance(data, (list, tuple)):
            x, y, weight = keras.utils.unpack_x_y_sample_weight(data)
        arguments = {
            "batch_size": options.get("validation_batch_size") or batch_size,
            "steps": options.get("validation_steps"),
            "verbose": 0,
            "return_dict": True,
        }
        values = {}
        for number, objective in enumerate(self._objectives):
            if not objective.losses_on_outputs:
                continue  # its outputs need not be the student's
            name = "teacher" if len(self._objectives) == 1 else f"teacher_{number}"
            with self._judging(number):
                logs = self.evaluate(x, y, sample_weight=weight, **arguments)
            values |= {
                f"val_{name}_{metric}": value
                for metric, value in logs.items()
                if not metric.endswith("loss")
            }
        return values

    @contextlib.contextmanager
    def _judging(self, number: int) -> Iterator[None]:
        self._judged, self.test_function = number, None
        try:
            with generators_kept():
                yield
        finally:
            self._judged, self.test_function = None, None
            self.reset_metrics()

    def _by_confidence(
        self, answered_batches: list[tuple[Batch, Any]]
    ) -> list[tuple[Batch, Any]]:
        batches = [batch for batch, _ in answered_batches]
        errors = [
            objective.error(batch)
            for objective, batch in zip(self._objectives, batches, strict=True)
        ]
        return [
            (replace(batch, weight=weighted(batch.weight, share)), teacher_features)
            for (batch, teacher_features), share in zip(
                answered_batches, confidences(errors), strict=True
            )
        ]
