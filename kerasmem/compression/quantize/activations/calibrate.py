"""Calibration: the ranges of a model's activations from a sample of its data."""

import warnings
from collections.abc import Iterator
from typing import Any

import keras
import numpy as np

from kerasmem.backends import current
from kerasmem.compression.quantize.activations.calls import Calls, flatten
from kerasmem.compression.quantize.activations.search import (
    Histogram,
    best_range,
    divergence,
    squared_error,
    with_zero,
)
from kerasmem.compression.quantize.config import Calibration
from kerasmem.errors import DataError, KerasMemWarning, ModelError
from kerasmem.files.data import check_data, input_batches
from kerasmem.files.data.flat import flat_samples
from kerasmem.graph.layers import own_graph
from kerasmem.records import ActivationRange

_FEW = 32


def calibrate(
    model: Any,
    data: Any,
    choice: Calibration | None = None,
    *,
    calls: Calls | None = None,
) -> tuple[ActivationRange, ...]:
    """Return the range of every tensor of a forward pass, in the order of the calls.

    The samples go through the model in batches; of each tensor only its ends and a
    histogram are kept, whatever the number of samples. Every range has zero in it.

    Args:
        model: a built model with a graph; models within it are opened.
        data: samples in any of the forms that `kerasmem.files.data` lists.
        choice: how the ranges are chosen; None for `Calibration()`.
        calls: what to run in place of the calls of the model, which it comes from.

    Raises:
        DataError: if the data does not fit the model, or it or an activation holds NaN
            or infinity.
        ModelError: if the model has no graph.

    Warns:
        KerasMemWarning: for less than 32 samples, samples that are all alike, and
            activations that never change.
    """
    choice = choice or Calibration()
    if own_graph(model) is None:
        raise ModelError(
            f"The calls of the model {model.name!r} are not known. Expected: a "
            "Sequential or Functional model. Received: a subclassed one."
        )
    check_data(model, data)
    calls = flatten(model) if calls is None else calls
    seen: dict[str, _Seen] = {}
    count, alike = 0, _Alike()

    def see(name: str, tensor: Any) -> None:
        if not keras.backend.is_float_dtype(
            keras.backend.standardize_dtype(tensor.dtype)
        ):
            return
        values = keras.ops.convert_to_numpy(keras.ops.cast(tensor, "float32"))
        _check_finite(name, values)
        seen.setdefault(name, _Seen(choice)).add(values)

    with current().inference():
        for batch in flat_batches(model, data, choice):
            count += len(batch[0])
            alike.add(batch)
            tensors = [keras.ops.convert_to_tensor(array) for array in batch]
            calls.run(tensors, see)
    ranges = tuple(each.range(name) for name, each in seen.items())
    _warn(count, ranges, alike=alike.holds and count > 1)
    return ranges


class _Seen:
    """What is kept of one tensor."""

    def __init__(self, choice: Calibration) -> None:
        self._choice = choice
        self._histogram = Histogram()
        self._average: tuple[float, float] | None = None

    def add(self, values: np.ndarray) -> None:
        self._histogram.add(values)
        ends = float(values.min()), float(values.max())
        old, decay = self._average or ends, self._choice.decay
        low, high = (
            decay * a + (1 - decay) * b for a, b in zip(old, ends, strict=True)
        )
        self._average = low, high

    def range(self, name: str) -> ActivationRange:
        histogram = self._histogram
        low, high = with_zero(*self._ends())
        return ActivationRange(
            name, low, high, histogram.least, histogram.most, histogram.total
        )

    def _ends(self) -> tuple[float, float]:
        method, histogram = self._choice.method, self._histogram
        if method == "moving-average" and self._average is not None:
            return self._average
        if method == "percentile":
            share = self._choice.percentile / 100
            return histogram.quantile(1 - share), histogram.quantile(share)
        if method == "mse":
            return best_range(histogram, squared_error)
        if method == "entropy":
            return best_range(histogram, divergence)
        return histogram.least, histogram.most


class _Alike:
    """Whether all samples are the same."""

    def __init__(self) -> None:
        self.holds = True
        self._first: list[np.ndarray] | None = None

    def add(self, batch: list[np.ndarray]) -> None:
        if self.holds:
            self._first = self._first or [array[:1].copy() for array in batch]
            pairs = zip(batch, self._first, strict=True)
            self.holds = all(bool((array == first).all()) for array, first in pairs)


def flat_batches(
    model: Any, data: Any, choice: Calibration
) -> Iterator[list[np.ndarray]]:
    """Yield an array per input of the model, batch by batch."""
    for x in input_batches(data, choice.samples, choice.batch_size):
        yield flat_samples(model, (x,), choice.samples)


def _check_finite(name: str, values: np.ndarray) -> None:
    bad = values.size - int(np.isfinite(values).sum())
    if bad:
        raise DataError(
            "A model is calibrated on finite numbers. Received: NaN or infinity in "
            f"{bad} of {values.size} values of {name!r}. Next: look at the data first, "
            "then at the weights of that layer."
        )


def _warn(count: int, ranges: tuple[ActivationRange, ...], *, alike: bool) -> None:
    constant = [each.tensor for each in ranges if each.is_constant]
    faults = []
    if count < _FEW:
        samples = "is 1 sample" if count == 1 else f"are {count} samples"
        faults.append(f"there {samples}, {_FEW} or more tell the range better")
    if alike and count > 1:
        faults.append(f"all {count} samples are the same")
    if constant:
        faults.append(
            f"{len(constant)} of {len(ranges)} activations never change, such as "
            f"{constant[0]!r}; their range is from 0 to their value"
        )
    if faults:
        warnings.warn(
            f"The calibration may mislead: {'; '.join(faults)}.",
            KerasMemWarning,
            stacklevel=3,
        )
