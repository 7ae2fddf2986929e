"""Models and training settings of the demo, tuned on its own images.

Kaiming He, Xiangyu Zhang, Shaoqing Ren, Jian Sun: Deep Residual Learning for Image
Recognition, 2015.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.resources import files
from typing import Any

import keras
import numpy as np
from keras import layers

from kerasmem.types import Model, Tensor

TEACHER_WIDTHS = (16, 32, 64, 128)
STUDENT_WIDTHS = (10, 10, 20, 40)  # less than a tenth of the parameters

# The default momentum, 0.99, needs more steps than the demo trains.
_STATISTICS_MOMENTUM = 0.9


def residual_network(
    image_shape: Sequence[int],
    classes: int,
    widths: Sequence[int] = TEACHER_WIDTHS,
    dropout: float = 0.0,
) -> Any:
    """Return an untrained image classifier with logits as outputs.

    The model scales the images and adds a channel axis if needed.

    The stem and each residual block have one of the `widths` as channels, and halve
    height and width.
    """
    images = keras.Input(image_shape, name="images")
    x = layers.Rescaling(1 / 255)(images)
    if len(image_shape) == 2:
        x = layers.Reshape((*image_shape, 1))(x)
    x = layers.ReLU()(layers.MaxPooling2D()(_convolution(x, widths[0])))
    for width in widths[1:]:
        x = _block(x, width)
    x = layers.GlobalAveragePooling2D()(x)
    x = layers.Dropout(dropout)(x)
    return keras.Model(images, layers.Dense(classes, name="logits")(x))


def _block(x: Tensor, width: int) -> Any:
    shortcut = _convolution(x, width, size=1, strides=2)
    x = layers.ReLU()(_convolution(x, width, strides=2))
    return layers.ReLU()(layers.Add()([_convolution(x, width), shortcut]))


def _convolution(x: Tensor, width: int, *, size: int = 3, strides: int = 1) -> Any:
    convolution = layers.Conv2D(
        width, size, strides=strides, padding="same", use_bias=False
    )
    return layers.BatchNormalization(momentum=_STATISTICS_MOMENTUM)(convolution(x))


@dataclass(frozen=True)
class Recipe:
    """Settings of the demo's three trainings.

    The student has no dropout, because it is small.
    """

    widths: tuple[int, ...] = TEACHER_WIDTHS
    dropout: float = 0.5
    epochs: int = 5
    fine_tune_epochs: int = 2
    student_widths: tuple[int, ...] = STUDENT_WIDTHS
    student_epochs: int = 3
    batch_size: int = 128
    student_batch_size: int = 64
    learning_rate: float = 3e-3
    fine_tune_learning_rate: float = 2e-3
    temperature: float = 2.0
    hard_weight: float = 0.3
    seed: int = 0


def compile_classifier(model: Model, learning_rate: float) -> Any:
    """Compile `model` as a classifier with logits and return the model."""
    model.compile(
        keras.optimizers.Adam(learning_rate),
        keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        metrics=["accuracy"],
    )
    return model


def falling_rate(peak: float, epochs: int) -> Any:
    """Return a callback for a cosine decay of the learning rate from `peak`."""

    def rate(epoch: int) -> float:
        return peak * (0.02 + 0.98 * (1 + math.cos(math.pi * epoch / epochs)) / 2)

    return keras.callbacks.LearningRateScheduler(rate)


Split = tuple[np.ndarray, np.ndarray]


def load_demo_data() -> tuple[Split, Split]:
    """Return `(x_train, y_train), (x_test, y_test)` of a subset of Fashion-MNIST.

    Images are uint8 arrays of shape (8000, 28, 28) and (2000, 28, 28). Labels are uint8
    from 0 to 9, with balanced classes.

    Example:
        >>> (x_train, y_train), (x_test, y_test) = load_demo_data()
        >>> x_train.shape, x_test.shape
        ((8000, 28, 28), (2000, 28, 28))
    """
    with (
        files("kerasmem.demo").joinpath("fashion_mnist_subset.npz").open("rb") as file,
        np.load(file, allow_pickle=False) as arrays,
    ):
        return (
            (arrays["x_train"], arrays["y_train"]),
            (arrays["x_test"], arrays["y_test"]),
        )


def mirrored_demo_data() -> tuple[Split, Split]:
    """Return `load_demo_data()`, with each training image also mirrored.

    Mirroring does not change the class of clothes.
    """
    (x, y), test = load_demo_data()
    return (np.concatenate([x, x[:, :, ::-1]]), np.concatenate([y, y])), test
