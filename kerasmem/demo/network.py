"""The small residual network that the demo trains.

Kaiming He, Xiangyu Zhang, Shaoqing Ren, Jian Sun: Deep Residual Learning for Image
Recognition, 2015.
"""

from collections.abc import Sequence
from typing import Any

import keras
from keras import layers

TEACHER_WIDTHS = (16, 32, 64, 160)
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
