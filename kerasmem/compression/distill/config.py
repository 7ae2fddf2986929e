"""The choice of a teacher for a step of `km.compress`."""

from dataclasses import KW_ONLY, dataclass
from pathlib import Path
from typing import Annotated, Any, ClassVar

import keras

from kerasmem.compression.distill.check import check_hard_weight
from kerasmem.compression.distill.distiller import HARD_WEIGHT
from kerasmem.compression.distill.losses import Logits, as_losses
from kerasmem.compression.fields import Whole
from kerasmem.compression.technique import Technique
from kerasmem.errors import ConfigError

ORIGINAL = "original"


@dataclass(frozen=True)
class Distill(Technique):
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
    epochs: Annotated[int, Whole(1)] = 1
    losses: Any = None
    hard_weight: float = HARD_WEIGHT

    name: ClassVar[str] = "distill"
    trains: ClassVar[bool] = True

    def __post_init__(self) -> None:
        super().__post_init__()
        is_name_alone = isinstance(self.teacher, str) and self.teacher.startswith(
            "<model "
        )
        if is_name_alone or not isinstance(self.teacher, (str, Path, keras.Model)):
            raise ConfigError(
                'The teacher is "original", the path of a saved model, or a '
                f"keras.Model. Received: teacher={self.teacher!r}."
            )
        check_hard_weight(self.hard_weight)
        losses = (Logits(),) if self.losses is None else as_losses(self.losses)
        object.__setattr__(self, "losses", losses)

    def to_json(self) -> dict[str, Any]:
        """Return the choice as plain data; `techniques.from_json` reads it back.

        Of a teacher that is a model only the name is described.
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
