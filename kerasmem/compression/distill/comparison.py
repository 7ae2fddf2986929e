"""One pair of layers that one loss compares, with what makes them comparable."""

from collections.abc import Sequence
from typing import Any

import keras

from kerasmem.compression.distill.features import Tap
from kerasmem.compression.distill.losses import FeatureLoss
from kerasmem.errors import ModelError


class Comparison(keras.layers.Layer):
    """A loss on one feature of the teacher and one of the student.

    Its weights are the projections, which are trained along with the student and go
    when the distiller goes.

    Args:
        loss: what compares.
        taps: of the teacher and of the student.
        shapes: of their features, without batch axis.
        dtype: policy of the projections.

    Raises:
        ModelError: if the loss cannot compare such shapes.
    """

    def __init__(
        self,
        loss: FeatureLoss,
        taps: tuple[Tap, Tap],
        shapes: tuple[tuple[Any, ...], tuple[Any, ...]],
        dtype: Any,
    ) -> None:
        super().__init__(dtype=dtype, autocast=False)
        _check(loss, taps, shapes)
        self.loss = loss
        self.teacher_tap, self.student_tap = taps
        width = loss.width(shapes[0])
        both = loss.heads == "both"
        # A projection of equal widths would only stand between the two.
        one = loss.heads == "student" and shapes[1][-1] != width
        self.teacher_head = _head(shapes[0], width, dtype) if both else None
        self.student_head = _head(shapes[1], width, dtype) if both or one else None
        self.built = True

    def features(self, taught: Any, learned: Any) -> tuple[Any, Any]:
        """Return both features as the loss takes them."""
        if self.teacher_head is not None:
            taught = self.teacher_head(taught)
        if self.student_head is not None:
            learned = self.student_head(learned)
        return taught, learned


def _check(loss: FeatureLoss, taps: Sequence[Tap], shapes: Sequence[Any]) -> None:
    why = loss.mismatch(*shapes)
    if not all(shapes):
        why = "a feature has at least one axis after that of the batch"
    if why:
        raise ModelError(
            f"{type(loss).__name__} cannot compare these layers: {why}. Received: "
            f"{taps[0].path!r} of the teacher with features of shape {shapes[0]}, "
            f"{taps[1].path!r} of the student with {shapes[1]}. Next: pair others."
        )


def _head(shape: tuple[Any, ...], width: int, dtype: Any) -> Any:
    """Return a dense layer on the last axis; for images it is a 1x1 convolution."""
    head = keras.layers.Dense(width, dtype=dtype, name="projection")
    head.build((None, *shape))
    return head
