"""The choice of a teacher for a step of `km.compress`."""

from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import KW_ONLY, dataclass, replace
from pathlib import Path
from typing import Any, ClassVar

import keras

from kerasmem.compression.distill.check import (
    check_epochs,
    check_hard_weight,
    check_outputs,
)
from kerasmem.compression.distill.distill import student_settings
from kerasmem.compression.distill.distiller import HARD_WEIGHT, Distiller
from kerasmem.compression.distill.losses import Logits, as_losses
from kerasmem.compression.technique import TrainingStep
from kerasmem.errors import ConfigError
from kerasmem.files.data import check_data, sample_inputs
from kerasmem.files.data.forms import first_samples
from kerasmem.files.load import load_model

ORIGINAL = "original"


@dataclass(frozen=True)
class Distill(TrainingStep):
    """Train what earlier steps left of a model on what a teacher knows.

    The step in which a model recovers from pruning: it learns from `data` again, and
    from the model that it was. What is removed stays removed. In place of
    `fine_tune_epochs`, or beside it.

    Args:
        teacher: `"original"` for the model that was handed to `km.compress`, the path
            of a saved model, or a model.
        epochs: passes over the data, at least 1.
        losses: what is learned of the teacher: one or several losses of
            `km.distillation`, as objects, names or plain data; None for `Logits` alone.
        hard_weight: share of the labels in the loss, in [0, 1].

    Raises:
        ConfigError: if a value cannot be used.

    Example:
        >>> Distill(epochs=3).to_json()["teacher"]
        'original'
    """

    teacher: Any = ORIGINAL
    _: KW_ONLY
    epochs: int = 1
    losses: Any = None
    hard_weight: float = HARD_WEIGHT

    name: ClassVar[str] = "distill"
    trains_on: ClassVar[bool] = False

    def __post_init__(self) -> None:
        told = isinstance(self.teacher, str) and self.teacher.startswith("<model ")
        if told or not isinstance(self.teacher, (str, Path, keras.Model)):
            raise ConfigError(
                'The teacher is "original", the path of a saved model, or a '
                f"keras.Model. Received: teacher={self.teacher!r}."
            )
        check_epochs(self.epochs)
        check_hard_weight(self.hard_weight)
        losses = (Logits(),) if self.losses is None else as_losses(self.losses)
        object.__setattr__(self, "losses", losses)

    def ready(self, original: Any, data: Any, custom_objects: Any) -> "Distill":
        """Return the choice with its teacher loaded, which was asked once.

        Raises:
            DataError: if the data does not fit the teacher.
            ModelError: if the outputs of teacher and student do not fit each other.
            ModelFileError: if the teacher's file cannot be loaded.
        """
        teacher = self.teacher
        if isinstance(teacher, (str, Path)):
            is_original = teacher == ORIGINAL
            teacher = original if is_original else load_model(teacher, custom_objects)
        check_data(teacher, (first_samples(data)["x"],))  # it is asked, not judged
        if teacher is not original:
            sample = sample_inputs(data, 1)
            given = (model(sample, training=False) for model in (teacher, original))
            check_outputs(*given)
        return replace(self, teacher=teacher)

    def train(
        self,
        model: Any,
        data: Any,
        kept: Callable[[Any], AbstractContextManager[Any]],
        **fit: Any,
    ) -> None:
        """Train `model` in place; the report has no change of a weight of it."""
        distiller = Distiller(
            self.teacher,
            model,
            losses=self.losses,
            hard_weight=self.hard_weight,
            sample=sample_inputs(data, 1),
        )
        distiller.compile(**student_settings(model, data))
        with kept(distiller):
            distiller.fit(**fit, epochs=self.epochs)

    def to_json(self) -> dict[str, Any]:
        """Return the choice as plain data; `techniques.from_json` reads it back.

        Of a teacher that is a model only its name is told.
        """
        teacher = self.teacher
        is_model = isinstance(teacher, keras.Model)
        return {
            "technique": self.name,
            "teacher": f"<model {teacher.name}>" if is_model else str(teacher),
            "epochs": self.epochs,
            "losses": [loss.to_json() for loss in self.losses],
            "hard_weight": self.hard_weight,
        }
