"""What a file loses beside its model: decisions, a metric, or relative error."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from kerasmem.errors import DataError, ModelError

DECISIONS, ACCURACY, RELATIVE = "changed decisions", "accuracy loss", "relative L2"
TOLERANCES = {DECISIONS: 0.02, ACCURACY: 0.005, RELATIVE: 0.05}
"""The largest loss that is allowed by default, by its name."""

_LEAST = 1e-6
"""Outputs below count as that large."""


@dataclass(frozen=True)
class Judged:
    """Samples that a file is judged on.

    Args:
        arrays: an array per input.
        labels: classes, an array per output, None for those of none; None if there are
            no labels.
        tolerance: the largest loss allowed; None for that of `TOLERANCES`.
        model_loss: the loss that the model was compiled with, None if it was not.
        batch_size: samples in a batch of the model; None for any number.
    """

    arrays: Sequence[np.ndarray]
    labels: Sequence[np.ndarray | None] | None = None
    tolerance: float | None = None
    model_loss: Any = None
    batch_size: int | None = None


@dataclass(frozen=True)
class Judge:
    """Compares the outputs of a file with those of its model.

    The loss of a classifier is the share of samples with another class than that of
    the model. If labels are known it is the accuracy that is lost, but at least a
    quarter of that share, which tells more on few samples. The loss of any other model
    is the relative L2 error: the root of the sum of squared differences over that of
    squared outputs. The largest loss of all outputs counts.

    Args:
        expected: the outputs of the model.
        classifies: of each output, whether it is that of a classifier.
        labels: the class of each sample, one array per output, None for those of
            none; None if there are no labels.
        tolerance: the largest loss allowed; None for that of `TOLERANCES`.
    """

    expected: Sequence[np.ndarray]
    classifies: Sequence[bool]
    labels: Sequence[np.ndarray | None] | None = None
    tolerance: float | None = None

    @property
    def measure(self) -> str:
        """The name of the loss: a key of `TOLERANCES`."""
        if not all(self.classifies):
            return RELATIVE
        return DECISIONS if self.labels is None else ACCURACY

    @property
    def allowed(self) -> float:
        """The largest loss allowed."""
        own = TOLERANCES[self.measure]
        return own if self.tolerance is None else self.tolerance

    def loss(self, outputs: Sequence[np.ndarray]) -> float:
        """Return the loss of a file with these outputs, infinite for NaN.

        Raises:
            ModelError: if the outputs have other shapes than those of the model.
        """
        shapes = [[a.shape for a in arrays] for arrays in (outputs, self.expected)]
        if shapes[0] != shapes[1]:
            raise ModelError(
                "The outputs of the file have other shapes than those of the model. "
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
    """Raise a `DataError` unless there is a class for each decision of each output."""
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
                "A classifier is judged on a class for each decision. Expected: labels "
                f"of shape {decisions}, or one-hot. Received: {array.shape}."
            )


def classes(output: np.ndarray) -> np.ndarray:
    """Return the class of each sample; of a single unit, whether it is above 0.5."""
    if output.shape[-1] == 1:
        return (output[..., 0] > 0.5).astype(np.int64)
    return output.argmax(axis=-1)


def relative_error(output: np.ndarray, expected: np.ndarray) -> float:
    """Return the relative L2 error of an output, infinite for another NaN or infinity.

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
    """Return of each output whether it is that of a classifier.

    It is if it holds probabilities of classes that add up to 1, or the probability of
    one class and a binary cross-entropy is the loss, or if a categorical cross-entropy
    is the loss.

    Args:
        loss: that a model was compiled with, None if it was not.
        expected: outputs of the model.
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
