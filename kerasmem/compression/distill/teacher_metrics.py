"""How well a teacher does by its student's metrics: what the student is to reach."""

from typing import Any

import keras

from kerasmem.compression.distill.objective import Batch, Objective


class TeacherMetrics(keras.callbacks.Callback):
    """Puts what teachers do by the student's metrics beside what the student does.

    Args:
        found: what to add to the logs of every epoch that the student was judged after.
    """

    def __init__(self, found: dict[str, float]) -> None:
        super().__init__()
        self._found = found

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        """Add what was found to the logs."""
        del epoch
        if logs is not None and any(name.startswith("val_") for name in logs):
            logs.update(self._found)


def teacher_answers(objective: Objective, x: Any, batch: Batch, given: Any) -> Any:
    """Return what a teacher answers, in the form that its student gives.

    Args:
        objective: the teacher.
        x: inputs of both.
        batch: what the student said, and its loss.
        given: what the teacher said of the batch before, or None to ask it.
    """
    answered, _ = objective.teacher_batch(x, batch, given)
    ways, masked = objective.comparables(answered), _MaskedAs()
    of_student, of_teacher = map(
        keras.tree.flatten, (batch.predictions, answered.answers)
    )
    return keras.tree.pack_sequence_as(
        batch.predictions,
        [
            masked([prediction, way.as_students(keras.ops.cast(answer, "float32"))])
            for way, answer, prediction in zip(
                ways, of_teacher, of_student, strict=True
            )
        ],
    )


class _MaskedAs(keras.layers.Layer):
    """Gives the second of two tensors the mask of the first."""

    def __init__(self) -> None:
        super().__init__(dtype="float32")
        self.supports_masking = True
        self.built = True

    def call(self, inputs: Any) -> Any:
        """Return the second tensor."""
        _, values = inputs
        return values

    def compute_mask(self, inputs: Any, previous_mask: Any) -> Any:
        """Return the first tensor's mask."""
        del inputs
        return previous_mask[0] if previous_mask else None
