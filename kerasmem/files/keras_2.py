"""Texts and functions in files that Keras 2 wrote.

`kerasmem.extras.legacy` reads these files. It is imported when the first one is opened.
"""

from typing import Any

import keras


@keras.saving.register_keras_serializable("kerasmem")
def hard_sigmoid_of_keras_2(x: Any) -> Any:
    """Return `clip(0.2 x + 0.5, 0, 1)`; that of Keras 3 has a slope of 1/6.

    A converted model is saved with it, and opened where nothing legacy is imported.
    """
    return keras.ops.clip(0.2 * x + 0.5, 0.0, 1.0)


def attribute_text(value: Any) -> str:
    """Return the text in an attribute of an HDF5 file, which may be bytes."""
    return value.decode("utf-8") if isinstance(value, bytes) else str(value)
