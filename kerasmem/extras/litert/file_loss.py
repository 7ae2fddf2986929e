"""Loss of a file compared with its model: decisions, accuracy or relative error."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from kerasmem.errors import DataError, ModelError

DECISIONS, ACCURACY, RELATIVE = "changed decisions", "accuracy loss", "relative L2"
TOLERANCES = {DECISIONS: 0.02, ACCURACY: 0.005, RELATIVE: 0.05}
"""Default maximum loss by measure."""

_LEAST = 1e-6
"""Smallest magnitude of outputs for relative errors."""


@dataclass(frozen=True)
class Judged:
    """Samples for comparing a file with its model.

    Args:
        arrays: One array per input.
        labels: Class labels, one array or None per output. None without labels.
        tolerance: Maximum loss. Defaults to the value in `TOLERANCES`.
        model_loss: Compiled loss of the model, or None.
        batch_size: Samples per batch of the model, or None for any size.
    """

    arrays: Sequence[np.ndarray]
    labels: Sequence[np.ndarray | None] | None = None
    tolerance: float | None = None
    model_loss: Any = None
    batch_size: int | None = None


@dataclass(frozen=True)
class Judge:
    """Compares the outputs of a file with the outputs of its model.

    For a classifier, the loss is the fraction of samples whose predicted class changes.
    With labels, the loss is the drop in accuracy, but at least a quarter of that
    fraction, which is more sensitive on few samples. For other models, the loss is the
    relative L2 error. The output with the largest loss counts.

    `own_loss` is the loss of the model itself if it rounds its activations. The file
    may lose as much more.
    """

    expected: Sequence[np.ndarray]
    classifies: Sequence[bool]
    labels: Sequence[np.ndarray | None] | None = None
    tolerance: float | None = None
    own_loss: float = 0.0

    @property
    def measure(self) -> str:
        """Name of the loss: a key of `TOLERANCES`."""
        if not all(self.classifies):
            return RELATIVE
        return DECISIONS if self.labels is None else ACCURACY

    @property
    def own_tolerance(self) -> float:
        """Tolerance, without the loss of the model itself."""
        return TOLERANCES[self.measure] if self.tolerance is None else self.tolerance

    @property
    def allowed(self) -> float:
        """Maximum loss."""
        return self.own_tolerance + self.own_loss

    def loss(self, outputs: Sequence[np.ndarray]) -> float:
        """Return the loss of a file with these outputs, infinity for NaN.

        Raises:
            ModelError: If the output shapes differ from the model's.
        """
        shapes = [[a.shape for a in arrays] for arrays in (outputs, self.expected)]
        if shapes[0] != shapes[1]:
            raise ModelError(
                "The outputs of the file and of the model differ in shape. "
                f"Expected: {shapes[1]}. Received: {shapes[0]}."
            )
        return max(map(self._loss_of, range(len(outputs)), outputs), default=0.0)

    def _loss_of(self, place: int, output: np.ndarray) -> float:
        reference = self.expected[place]
        if not np.array_equal(np.isnan(output), np.isnan(reference)):
            return float("inf")
        if self.measure == RELATIVE:
            return relative_error(output, reference)
        ours, theirs = classes(output), classes(reference)
        share = float(np.mean(ours != theirs))
        if self.labels is None:
            return share
        labels = self.labels[place]
        if labels is None:
            return share / 4
        if labels.size != theirs.size:
            labels = labels.argmax(axis=-1)  # one-hot
        labels = labels.reshape(theirs.shape)
        loss = float(np.mean(theirs == labels) - np.mean(ours == labels))
        return max(loss, share / 4)


def check_labels(
    labels: Sequence[np.ndarray | None], expected: Sequence[np.ndarray]
) -> None:
    """Raise `DataError` unless each decision of each output has a class label."""
    if len(labels) != len(expected):
        raise DataError(
            f"Expected: labels for each of {len(expected)} outputs. Received: "
            f"{len(labels)} arrays of labels."
        )
    for array, output in zip(labels, expected, strict=True):
        decisions = classes(output).shape
        fits = (decisions, (*decisions, 1), (*decisions, output.shape[-1]))
        if array is not None and array.shape not in fits:
            raise DataError(
                "A classifier needs one class label per decision. Expected: labels "
                f"of shape {decisions}, or one-hot. Received: {array.shape}."
            )


def classes(output: np.ndarray) -> np.ndarray:
    """Return the predicted class. A single unit is class 1 above 0.5."""
    if output.shape[-1] == 1:
        return (output[..., 0] > 0.5).astype(np.int64)
    return output.argmax(axis=-1)


def relative_error(output: np.ndarray, expected: np.ndarray) -> float:
    """Return the relative L2 error, infinity if NaN or infinity differs.

    Example:
        >>> relative_error(np.array([3.0, 4.0]), np.array([3.0, 3.0])) == 18**-0.5
        True
    """
    ours, exact = output.astype(np.float64), expected.astype(np.float64)
    same = (ours == exact) | (np.isnan(ours) & np.isnan(exact))
    if not np.isfinite(ours[~same]).all() or not np.isfinite(exact[~same]).all():
        return float("inf")
    error = np.sum(np.square(ours[~same] - exact[~same]))
    finite = exact[np.isfinite(exact)]
    power = max(np.sum(np.square(finite)), exact.size * _LEAST**2)
    return float(np.sqrt(error / power))


def classifiers(loss: Any, expected: Sequence[np.ndarray]) -> list[bool]:
    """Return whether each output is a classifier output.

    An output is a classifier output if its probabilities add up to 1, or if the loss is
    a categorical crossentropy. A single probability also needs a binary crossentropy
    loss.
    """
    if isinstance(loss, list | tuple) and len(loss) == 1:
        (loss,) = loss
    name = getattr(loss, "name", None) or getattr(loss, "__name__", loss)
    name = name.replace("_", "").lower() if isinstance(name, str) else ""
    return [_has_classes(output, name) for output in expected]


def _has_classes(output: np.ndarray, loss: str) -> bool:
    if output.ndim < 2 or not np.issubdtype(output.dtype, np.floating):
        return False
    if not np.isfinite(output).all():
        return False
    if output.shape[-1] == 1:
        is_binary = "binarycrossentropy" in loss
        return is_binary and bool(((output >= 0) & (output <= 1)).all())
    sums = output.astype(np.float64).sum(axis=-1)
    is_share = bool((output >= 0).all() and np.allclose(sums, 1, atol=1e-2))
    return "categoricalcrossentropy" in loss or is_share
