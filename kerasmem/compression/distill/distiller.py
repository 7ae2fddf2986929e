"""The model that is trained while a student learns from a teacher."""

from typing import Any

import keras
from keras import ops

from kerasmem.compression.distill.check import (
    check_models,
    check_numbers,
    check_outputs,
)
from kerasmem.compression.distill.frozen import FrozenTeacher
from kerasmem.compression.distill.losses import soft_loss
from kerasmem.compression.distill.outputs import describe_outputs

TEMPERATURE = 4.0
HARD_WEIGHT = 0.1


class Distiller(keras.Model):
    """Trains a student on labels and on the answers of a teacher.

    The loss of a batch is `hard_weight` times the student's own loss on the labels
    plus `1 - hard_weight` times the distance to the teacher's answers, and, in full,
    whatever the student's layers add (regularizers). Without labels, or compiled
    without a loss, the teacher's answers count alone. Sample weights count in both.

    Probabilities and logits of a classifier are compared as distributions softened by
    `temperature` (losses.py); the outputs of a regression by their mean squared error.

    Compile and fit it like any model. The student given is the one that is trained;
    the teacher is only asked, once per step, in inference mode. What `fit` reports:
    `loss`, `student_loss` (on the labels), `distillation_loss` and the metrics. `save`
    and `save_weights`, which callbacks use, write the student alone.

    Args:
        teacher: a built model. It may differ from the student in everything but the
            inputs that it takes and the shape of its outputs.
        student: the model to train.
        temperature: above 0; higher shows the student more of the small probabilities.
        hard_weight: share of the labels in the loss, in [0, 1].

    Raises:
        ConfigError: if an argument has a value that cannot be used.
        ModelError: if the teacher has no weights; at the first step, if the outputs of
            the two models do not fit each other.
    """

    def __init__(
        self,
        teacher: Any,
        student: Any,
        *,
        temperature: float = TEMPERATURE,
        hard_weight: float = HARD_WEIGHT,
        name: str = "distiller",
    ) -> None:
        check_models(teacher, student)
        check_numbers(temperature, hard_weight)
        super().__init__(name=name, dtype=student.dtype_policy, autocast=False)
        self.student = student
        self.temperature = temperature
        self.hard_weight = hard_weight
        self._frozen = FrozenTeacher(teacher)
        self._teacher_state = self._frozen.step_state()
        self._student_loss = keras.metrics.Mean(name="student_loss")
        self._distillation_loss = keras.metrics.Mean(name="distillation_loss")
        # Its weights are the student's, so callbacks find them before the first step.
        self.built = student.built

    @property
    def teacher(self) -> Any:
        """The model that is asked, as it was handed in."""
        return self._frozen.model

    @property
    def output_names(self) -> list[str]:
        """Names of the student's outputs, by which losses and metrics are assigned."""
        return self.student.output_names

    @property
    def metrics(self) -> list[Any]:
        """What `fit` reports; the loss on labels only where there is one."""
        found = super().metrics
        return found if self.loss else [m for m in found if m is not self._student_loss]

    def call(self, inputs: Any, training: bool | None = None) -> Any:  # noqa: FBT001
        """Return the student's outputs."""
        return self.student(inputs, training=training)

    def compute_loss(
        self,
        x: Any = None,
        y: Any = None,
        y_pred: Any = None,
        sample_weight: Any = None,
        training: bool = True,  # noqa: FBT001, FBT002  (the signature is Keras's)
    ) -> Any:
        """Return the loss of one batch; `y_pred` are the student's outputs for `x`."""
        soft = self._distance(x, y_pred, sample_weight)
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

    def _distance(self, x: Any, y_pred: Any, sample_weight: Any) -> Any:
        """Return the distance between the outputs of the two models, summed."""
        answers = self._frozen.answer(x, self._teacher_state)
        check_outputs(answers, y_pred)
        taught, learned = keras.tree.flatten(answers), keras.tree.flatten(y_pred)
        weights = keras.tree.flatten(sample_weight)
        if len(weights) != len(learned):
            weights = [sample_weight] * len(learned)
        losses = self._soft_losses(answers, y_pred)
        terms = zip(losses, taught, learned, weights, strict=True)
        return sum(loss(*values) for loss, *values in terms)

    def _soft_losses(self, answers: Any, y_pred: Any) -> list[Any]:
        pairs = zip(
            describe_outputs(self.teacher, self.teacher.loss, answers),
            describe_outputs(self.student, self.loss or self.student.loss, y_pred),
            strict=True,
        )
        return [soft_loss(*pair, self.temperature) for pair in pairs]
