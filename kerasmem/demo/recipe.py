"""How the demo trains: found by trying, on the images that it carries.

Kaiming He, Xiangyu Zhang, Shaoqing Ren, Jian Sun: Deep Residual Learning for Image
Recognition, 2015.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import keras
from keras import layers

TEACHER_WIDTHS = (16, 32, 64, 128)
STUDENT_WIDTHS = (10, 10, 20, 40)  # less than a tenth of the parameters

# The default, 0.99, needs more steps than the demo has to learn the statistics.
_STATISTICS_MOMENTUM = 0.9


def residual_network(
    image_shape: Sequence[int],
    classes: int,
    widths: Sequence[int] = TEACHER_WIDTHS,
    dropout: float = 0.0,
) -> Any:
    """Return an untrained classifier of images, which gives logits.

    What the images need is inside: scaling, and a channel axis if there is none.

    Args:
        image_shape: height, width and, if there is one, channels; values 0 to 255.
        classes: number of classes.
        widths: channels of the stem and of each residual block. Every block but the
            first halves height and width.
        dropout: share of the last features that is left out while training.
    """
    images = keras.Input(image_shape, name="images")
    x = layers.Rescaling(1 / 255)(images)
    if len(image_shape) == 2:
        x = layers.Reshape((*image_shape, 1))(x)
    x = layers.ReLU()(_convolution(x, widths[0]))
    x = layers.MaxPooling2D()(x)
    for index, width in enumerate(widths[1:]):
        x = _block(x, width, strides=1 if index == 0 else 2)
    x = layers.GlobalAveragePooling2D()(x)
    x = layers.Dropout(dropout)(x)
    return keras.Model(images, layers.Dense(classes, name="logits")(x))


def _block(x: Any, width: int, strides: int) -> Any:
    shortcut = x
    x = layers.ReLU()(_convolution(x, width, strides=strides))
    x = _convolution(x, width)
    if strides != 1 or shortcut.shape[-1] != width:
        shortcut = _convolution(shortcut, width, size=1, strides=strides)
    return layers.ReLU()(layers.Add()([x, shortcut]))


def _convolution(x: Any, width: int, *, size: int = 3, strides: int = 1) -> Any:
    convolution = layers.Conv2D(
        width, size, strides=strides, padding="same", use_bias=False
    )
    return layers.BatchNormalization(momentum=_STATISTICS_MOMENTUM)(convolution(x))


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
    fine_tune_epochs: int = 3
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
