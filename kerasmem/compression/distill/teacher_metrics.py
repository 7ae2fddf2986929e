"""How well a teacher does by its student's metrics: what the student is to reach."""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

import keras
from keras import ops

from kerasmem.compression.distill.cached_batch import split_answers
from kerasmem.compression.distill.lesson import Batch, Lesson


class TeacherMetrics(keras.callbacks.Callback):
    """Puts what teachers do by the student's metrics beside what the student does.

    A teacher does not learn, so each is judged once, on the validation data, and every
    epoch's logs get the same `val_teacher_accuracy`; `val_teacher_0_accuracy` and so on
    of several. Data that can be read only once is left to the student.

    Args:
        lessons: one per teacher.
        batch: a batch of which only the student and its loss are known.
        metrics: arguments of `compile` that give the student's metrics.
        validation: arguments of `evaluate` that give the validation data.
    """

    def __init__(
        self,
        lessons: Sequence[Lesson],
        batch: Batch,
        metrics: dict[str, Any],
        validation: dict[str, Any],
    ) -> None:
        super().__init__()
        self._lessons = lessons
        self._batch = batch
        self._metrics = metrics
        self._validation = validation
        self._found: dict[str, float] = {}

    def on_train_begin(self, logs: Any = None) -> None:
        """Judge the teachers."""
        del logs
        if isinstance(self._validation["x"], Iterator):
            return
        for number, lesson in enumerate(self._lessons):
            if not lesson.losses_on_outputs:
                continue  # its outputs need not be the student's
            judged = _Answers(lesson, number, self._batch)
            judged.compile(**self._metrics)
            found = judged.evaluate(**self._validation, verbose=0, return_dict=True)
            name = "teacher" if len(self._lessons) == 1 else f"teacher_{number}"
            self._found |= {
                f"val_{name}_{metric}": value
                for metric, value in found.items()
                if metric != "loss"
            }

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        """Add what was found to the logs."""
        del epoch
        if logs is not None:
            logs.update(self._found)


class _Answers(keras.Model):
    """Gives what a teacher answers, in the form that its student gives."""

    def __init__(self, lesson: Lesson, number: int, batch: Batch) -> None:
        policy = batch.student.dtype_policy
        super().__init__(name="teacher_answers", dtype=policy, autocast=False)
        self._lesson = lesson
        self._number = number
        self._batch = batch
        self.built = True

    @property
    def output_names(self) -> list[str]:
        """Names of the student's outputs, by which metrics are assigned."""
        return self._batch.student.output_names

    def call(self, inputs: Any) -> Any:
        x, kept = split_answers(inputs)
        batch = replace(self._batch, predictions=self._student_gives(x))
        given = None if kept is None else kept[self._number]
        batch, _ = self._lesson.told(x, batch, given)
        answers = keras.tree.flatten(batch.answers)
        ways = self._lesson.comparables(batch)
        return keras.tree.pack_sequence_as(
            batch.predictions,
            [
                way.as_students(ops.cast(answer, "float32"))
                for way, answer in zip(ways, answers, strict=True)
            ],
        )

    def compute_loss(self, *given: Any, **named: Any) -> Any:
        """Return 0: only metrics are asked for."""
        del given, named
        return ops.zeros(())

    def _student_gives(self, x: Any) -> Any:
        """Return symbols of what the student would give for a batch."""
        symbols = keras.tree.map_structure(
            lambda array: keras.KerasTensor(array.shape, array.dtype), x
        )
        return self._batch.student.compute_output_spec(symbols, training=False)
