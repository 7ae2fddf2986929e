"""Calibration: the ranges of a model's activations from a sample of its data."""

import warnings
from collections.abc import Iterator
from dataclasses import KW_ONLY, dataclass
from typing import Any

import keras
import numpy as np

from kerasmem.backends import current
from kerasmem.compression.quantize.activations.calls import Calls, flatten
from kerasmem.compression.quantize.activations.histogram import Histogram
from kerasmem.compression.quantize.activations.search import (
    best_range,
    divergence,
    squared_error,
    with_zero,
)
from kerasmem.compression.quantize.activations.walk import walk_calls
from kerasmem.errors import ConfigError, DataError, KerasMemWarning, ModelError
from kerasmem.files.data import check_data, is_array_data
from kerasmem.files.data.flat import flat_samples
from kerasmem.graph.nodes import own_graph
from kerasmem.records import ActivationRange

METHODS = ("min-max", "moving-average", "percentile", "mse", "entropy")
_FEW = 32


@dataclass(frozen=True)
class Calibration:
    """How the range of an activation is chosen.

    Args:
        method: `"min-max"` takes all that was seen; `"moving-average"` an average of
            the batches' ends, late ones counting more; `"percentile"` leaves out the
            ends of the distribution; `"mse"` and `"entropy"` search for the range with
            the least squared error, or Kullback-Leibler divergence, of its codes.
        percentile: percent of the values below the upper end, and above the lower one,
            in (50, 100].
        decay: weight of what was before each batch in a moving average, in [0, 1).
        samples: most samples to look at, from 1.
        batch_size: samples that go through the model at a time, from 1; batched data
            keeps its own.

    Raises:
        ConfigError: if one of them cannot be used.
    """

    method: str = "min-max"
    _: KW_ONLY
    percentile: float = 99.99
    decay: float = 0.9
    samples: int = 512
    batch_size: int = 32

    def __post_init__(self) -> None:
        for name, fits, expected in (
            ("method", self.method in METHODS, f"one of {', '.join(METHODS)}"),
            ("percentile", 50 < self.percentile <= 100, "above 50 and at most 100"),
            ("decay", 0 <= self.decay < 1, "at least 0 and below 1"),
            ("samples", self.samples >= 1, "1 or more"),
            ("batch_size", self.batch_size >= 1, "1 or more"),
        ):
            if not fits:
                raise ConfigError(
                    f"The {name} of a Calibration is {expected}. "
                    f"Received: {name}={getattr(self, name)!r}."
                )


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
            walk_calls(calls, tensors, see)
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
    left = choice.samples
    if is_array_data(data):
        whole = flat_samples(model, data, left)
        for start in range(0, len(whole[0]), choice.batch_size):
            yield [array[start : start + choice.batch_size] for array in whole]
        return
    # A PyDataset has as many batches as it says; iterated over, it might go on.
    indices = range(len(data)) if isinstance(data, keras.utils.PyDataset) else None
    for batch in data if indices is None else (data[index] for index in indices):
        x, _, _ = keras.utils.unpack_x_y_sample_weight(batch)
        arrays = flat_samples(model, (x,), left)
        yield arrays
        left -= len(arrays[0])
        if left <= 0:
            return


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
