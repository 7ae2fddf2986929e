"""What `distill` refuses, each with one clear line."""

from collections.abc import Sequence
from typing import Any

import keras

from kerasmem.compression.distill.sample_weights import BY_CONFIDENCE
from kerasmem.compression.fields import is_number
from kerasmem.errors import ConfigError, ModelError, as_received


def check_models(teachers: Sequence[Any], student: Any) -> None:
    """Raise unless teachers and student are Keras models.

    Raises:
        ModelError: if one is no model, a teacher is the student, or there is none.
    """
    if not teachers:
        raise ModelError("There must be a teacher. Received: an empty list.")
    roles = [*(("teacher", teacher) for teacher in teachers), ("student", student)]
    for role, model in roles:
        if not isinstance(model, keras.Model):
            raise ModelError(
                f"The {role} must be a keras.Model, as in distill(teacher, student, "
                f"data). Received: {role}={as_received(model)}."
            )
    if any(teacher is student for teacher in teachers):
        raise ModelError(
            "Teacher and student are one and the same model, which would change while "
            f"it teaches. Received: {student.name!r} twice. Next: hand in a clone."
        )


def check_hard_weight(hard_weight: Any) -> None:
    """Raise unless the weight of the labels is a share.

    Raises:
        ConfigError: with the value received.
    """
    if not is_number(hard_weight) or not 0 <= hard_weight <= 1:
        raise ConfigError(
            "The weight of the labels must be in [0, 1]. Received: "
            f"hard_weight={hard_weight!r}."
        )


def teacher_shares(teachers: list[Any], weights: Any) -> list[float] | None:
    """Return the share of every teacher, the weights over their sum.

    Args:
        teachers: the teachers.
        weights: one number from 0 for each, None for equal shares, or "confidence" for
            shares that differ by sample, for which None is returned.

    Raises:
        ConfigError: if they are not as many, or not such numbers.
    """
    if isinstance(weights, str):
        if weights == BY_CONFIDENCE and len(teachers) > 1:
            return None
        raise ConfigError(
            f'Several teachers are weighted by numbers or by "{BY_CONFIDENCE}". '
            f"Received: teacher_weights={weights!r} for {len(teachers)} of them."
        )
    given = [1.0] * len(teachers) if weights is None else list(weights)
    fits = len(given) == len(teachers) and all(is_number(w) and w >= 0 for w in given)
    if not fits or sum(given) <= 0:
        raise ConfigError(
            f"There is one weight for each of the {len(teachers)} teachers, at least "
            f"0, and not all are 0. Received: teacher_weights={weights!r}."
        )
    return [weight / sum(given) for weight in given]


def check_outputs(answers: Any, predictions: Any) -> None:
    """Raise unless the outputs of teacher and student have equal names and shapes.

    Args:
        answers: the teacher's outputs for a batch: a tensor, or a dict or list.
        predictions: the student's outputs for the same batch.

    Raises:
        ModelError: with both shapes.
    """
    of_teacher, of_student = _shapes(answers), _shapes(predictions)
    if of_teacher != of_student:
        raise ModelError(
            "Teacher and student must have outputs of the same shape, such as an equal "
            f"number of classes. Received: the teacher gives {_text(of_teacher)}, the "
            f"student {_text(of_student)}."
        )


def _shapes(outputs: Any) -> dict[str, tuple[Any, ...]]:
    """Return the shape of each output without its batch axis, by its path."""
    pairs = keras.tree.flatten_with_path(outputs)
    return {".".join(map(str, path)): tuple(leaf.shape)[1:] for path, leaf in pairs}


def _text(shapes: dict[str, tuple[Any, ...]]) -> str:
    return ", ".join(
        f"{name} of shape (batch, {', '.join(map(str, shape))})"
        if name
        else f"shape (batch, {', '.join(map(str, shape))})"
        for name, shape in shapes.items()
    )
