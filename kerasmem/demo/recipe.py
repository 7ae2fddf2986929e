"""How the demo trains: found by trying, on the images that it carries."""

import math
from dataclasses import dataclass
from typing import Any

import keras

from kerasmem.demo.network import STUDENT_WIDTHS, TEACHER_WIDTHS


@dataclass(frozen=True)
class Recipe:
    """Settings of the demo's three trainings.

    Args:
        widths: channels of the network's stages.
        dropout: of the network; the student is too small to need any.
        epochs: passes over the data, to train the network.
        fine_tune_epochs: passes after pruning.
        student_widths: channels of the student's stages.
        student_epochs: passes to teach the student.
        batch_size: samples per step of the network.
        student_batch_size: samples per step of the student.
        learning_rate: of Adam, in the first epoch.
        fine_tune_learning_rate: the same, after pruning.
        temperature: of the teacher's answers.
        hard_weight: share of the labels in what the student learns from.
        seed: makes the demo repeatable.
    """

    widths: tuple[int, ...] = TEACHER_WIDTHS
    dropout: float = 0.5
    epochs: int = 4
    fine_tune_epochs: int = 5
    student_widths: tuple[int, ...] = STUDENT_WIDTHS
    student_epochs: int = 3
    batch_size: int = 128
    student_batch_size: int = 64
    learning_rate: float = 3e-3
    fine_tune_learning_rate: float = 2e-3
    temperature: float = 2.0
    hard_weight: float = 0.3
    seed: int = 0


def compile_classifier(model: Any, learning_rate: float) -> Any:
    """Return `model`, compiled as a classifier that gives logits."""
    model.compile(
        keras.optimizers.Adam(learning_rate),
        keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        metrics=["accuracy"],
    )
    return model


def falling_rate(peak: float, epochs: int) -> Any:
    """Return a callback that lets the learning rate fall from `peak` along a cosine."""

    def rate(epoch: int) -> float:
        return peak * (0.02 + 0.98 * (1 + math.cos(math.pi * epoch / epochs)) / 2)

    return keras.callbacks.LearningRateScheduler(rate)
