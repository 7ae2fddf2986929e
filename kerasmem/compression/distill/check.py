"""What `distill` refuses, each with one clear line."""

import math
from typing import Any

import keras

from kerasmem.errors import ConfigError, ModelError


def check_models(teacher: Any, student: Any) -> None:
    """Raise unless teacher and student are two Keras models.

    Raises:
        ModelError: if one is no model, or both are the same.
    """
    for role, model in (("teacher", teacher), ("student", student)):
        if not isinstance(model, keras.Model):
            raise ModelError(
                f"The {role} must be a keras.Model. Received: {role}={model!r} of type "
                f"{type(model).__name__}."
            )
    if teacher is student:
        raise ModelError(
            "Teacher and student are one and the same model, which would change while "
            f"it teaches. Received: {teacher.name!r} twice. Next: hand in a clone."
        )


def check_numbers(temperature: float, hard_weight: float) -> None:
    """Raise unless the temperature is above 0 and the weight a share.

    Raises:
        ConfigError: with the value received.
    """
    if not (math.isfinite(temperature) and temperature > 0):
        raise ConfigError(
            "The temperature must be a number above 0. Received: "
            f"temperature={temperature!r}. Next: 2 to 8 suits most classifiers."
        )
    if not 0 <= hard_weight <= 1:
        raise ConfigError(
            "The weight of the labels must be in [0, 1]. Received: "
            f"hard_weight={hard_weight!r}."
        )


def check_epochs(epochs: int) -> None:
    """Raise unless there is at least one epoch.

    Raises:
        ConfigError: with the value received.
    """
    if epochs < 1:
        raise ConfigError(
            f"Distillation takes at least one epoch. Received: epochs={epochs!r}."
        )


def check_outputs(answers: Any, predictions: Any) -> None:
    """Raise unless the outputs of teacher and student have equal names and shapes.

    Args:
        answers: the teacher's outputs for a batch: a tensor, or a dict or list.
        predictions: the student's outputs for the same batch.

    Raises:
        ModelError: with both shapes.
    """
    taught, learned = _shapes(answers), _shapes(predictions)
    if taught != learned:
        raise ModelError(
            "Teacher and student must have outputs of the same shape, such as an equal "
            f"number of classes. Received: the teacher gives {_text(taught)}, the "
            f"student {_text(learned)}."
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
