"""Calibration: activation ranges of a model from samples of its data.

Some methods clip a few large values to get a smaller step. They search a histogram.

Sources: Migacz, "8-bit Inference with TensorRT", 2017 (entropy); Krishnamoorthi,
"Quantizing deep convolutional networks for efficient inference: A whitepaper", 2018.
"""

import warnings
from collections.abc import Callable, Iterator

import keras
import numpy as np

from kerasmem.backends import current
from kerasmem.compression.quantize.config import Calibration
from kerasmem.errors import DataError, KerasMemWarning, ModelError
from kerasmem.files.data import check_data, input_batches
from kerasmem.files.data.check import flat_samples
from kerasmem.graph.flat_calls import Calls, flatten
from kerasmem.graph.layers import own_graph
from kerasmem.records import ActivationRange
from kerasmem.types import Dataset, Model, Tensor

_FEW = 32


def calibrate(
    model: Model,
    data: Dataset,
    calibration: Calibration | None = None,
    *,
    calls: Calls | None = None,
) -> tuple[ActivationRange, ...]:
    """Calibrate a model: return the range of every tensor, in call order.

    Only the extremes and a histogram of each tensor are kept, so memory does not depend
    on the number of samples. Every range contains zero.

    Args:
        model: Built model with a graph. Nested models are opened.
        data: Samples in any form listed in `kerasmem.files.data`.
        calibration: A `Calibration`. Defaults to `Calibration()`.
        calls: Calls derived from `model` to run in place of the model's calls.

    Raises:
        DataError: If the data does not fit the model, or if the data or an activation
            contains NaN or infinity.
        ModelError: If the model has no graph.

    Warns:
        KerasMemWarning: If there are fewer than 32 samples, all samples are equal, or
            some activations are constant.
    """
    calibration = calibration or Calibration()
    if own_graph(model) is None:
        raise ModelError(
            f"The model {model.name!r} has no graph. Expected: a Sequential or "
            "Functional model. Received: a subclassed model."
        )
    check_data(model, data)
    calls = flatten(model) if calls is None else calls
    observers: dict[str, Observer] = {}
    count, alike, first = 0, True, list[np.ndarray]()

    def see(name: str, tensor: Tensor) -> None:
        if not keras.backend.is_float_dtype(
            keras.backend.standardize_dtype(tensor.dtype)
        ):
            return
        observers.setdefault(name, Observer(calibration)).add(name, tensor)

    with current().inference():
        for batch in flat_batches(model, data, calibration):
            count += len(batch[0])
            first = first or [array[:1].copy() for array in batch]
            pairs = zip(batch, first, strict=True)
            alike = alike and all(bool((array == one).all()) for array, one in pairs)
            tensors = [keras.ops.convert_to_tensor(array) for array in batch]
            calls.run(tensors, see)
    ranges = tuple(each.range(name) for name, each in observers.items())
    _warn(count, ranges, alike=alike and count > 1)
    return ranges


class Observer:
    """Statistics of one tensor."""

    def __init__(self, calibration: Calibration) -> None:
        self._calibration = calibration
        self._histogram = Histogram()
        self._average: tuple[float, float] | None = None

    def add(self, name: str, tensor: Tensor) -> None:
        """Add the values of a tensor called `name`, which must be finite."""
        values = keras.ops.convert_to_numpy(keras.ops.cast(tensor, "float32"))
        _check_finite(name, values)
        self._histogram.add(values)
        ends = float(values.min()), float(values.max())
        old, decay = self._average or ends, self._calibration.decay
        low, high = (
            decay * a + (1 - decay) * b for a, b in zip(old, ends, strict=True)
        )
        self._average = low, high

    def range(self, name: str) -> ActivationRange:
        """Return the range that the calibration method selects. It contains zero."""
        histogram = self._histogram
        low, high = with_zero(*self._ends())
        return ActivationRange(
            name, low, high, histogram.least, histogram.most, histogram.total
        )

    def _ends(self) -> tuple[float, float]:
        method, histogram = self._calibration.method, self._histogram
        if method == "moving-average" and self._average is not None:
            return self._average
        if method == "percentile":
            share = self._calibration.percentile / 100
            return histogram.quantile(1 - share), histogram.quantile(share)
        if method == "mse":
            return best_range(histogram, squared_error)
        if method == "entropy":
            return best_range(histogram, divergence)
        return histogram.least, histogram.most


def flat_batches(
    model: Model, data: Dataset, calibration: Calibration
) -> Iterator[list[np.ndarray]]:
    """Yield batches as lists with one array per model input."""
    for x in input_batches(data, calibration.samples, calibration.batch_size):
        yield flat_samples(model, (x,), calibration.samples)


def _check_finite(name: str, values: np.ndarray) -> None:
    bad = values.size - int(np.isfinite(values).sum())
    if bad:
        raise DataError(
            "Calibration needs finite values. Received: NaN or infinity in "
            f"{bad} of {values.size} values of {name!r}. Next: check the data first, "
            "then the weights of that layer."
        )


def _warn(count: int, ranges: tuple[ActivationRange, ...], *, alike: bool) -> None:
    constant = [each.tensor for each in ranges if each.is_constant]
    faults = []
    if count < _FEW:
        samples = "is 1 sample" if count == 1 else f"are {count} samples"
        faults.append(f"there {samples}, at least {_FEW} are recommended")
    if alike:
        faults.append(f"all {count} samples are equal")
    if constant:
        faults.append(
            f"{len(constant)} of {len(ranges)} activations are constant, such as "
            f"{constant[0]!r}; their range is from 0 to their value"
        )
    if faults:
        warnings.warn(
            f"The calibration may be inaccurate: {'; '.join(faults)}.",
            KerasMemWarning,
            stacklevel=3,
        )


BINS = 2048


class Histogram:
    """Counts of values in bins of equal width over a growing range.

    The first values set the range. If a later value lies outside, the range doubles
    towards that side and pairs of bins merge. Counts are therefore never lost or split.
    Each value is counted at most one bin away from its position.
    """

    def __init__(self) -> None:
        self.counts = np.zeros(BINS, np.int64)
        self.low = self.high = 0.0
        self.least, self.most = np.inf, -np.inf

    @property
    def width(self) -> float:
        """Width of a bin."""
        return (self.high - self.low) / BINS

    @property
    def centers(self) -> np.ndarray:
        """Center of each bin."""
        return self.low + (np.arange(BINS) + 0.5) * self.width

    @property
    def total(self) -> int:
        """Number of values."""
        return int(self.counts.sum())

    def add(self, values: np.ndarray) -> None:
        """Count at least one finite value of an array of any shape."""
        values = np.asarray(values, np.float64).ravel()
        least, most = float(values.min()), float(values.max())
        self.least, self.most = min(self.least, least), max(self.most, most)
        if not self.total:
            # A constant has width 0: widen the range until its ends differ as floats.
            room = 0.0 if most > least else max(abs(most), 1e-30) * 1e-6
            self.low, self.high = least - room, most + room
        while least < self.low:
            self._double(downwards=True)
        while most > self.high:
            self._double(downwards=False)
        places = ((values - self.low) / self.width).astype(np.int64)
        self.counts += np.bincount(np.clip(places, 0, BINS - 1), minlength=BINS)

    def quantile(self, share: float) -> float:
        """Return the quantile at `share` in [0, 1], accurate to one bin."""
        below = np.cumsum(self.counts)
        target = min(max(share * self.total, 1e-9), self.total)
        place = int(np.searchsorted(below, target))
        before = below[place] - self.counts[place]
        inside = (target - before) / self.counts[place]
        value = self.low + (place + float(inside)) * self.width
        return min(max(value, self.least), self.most)

    def _double(self, *, downwards: bool) -> None:
        pair_counts = self.counts.reshape(-1, 2).sum(axis=1)
        empty = np.zeros_like(pair_counts)
        size = self.high - self.low
        if downwards:
            self.counts, self.low = (
                np.concatenate([empty, pair_counts]),
                self.low - size,
            )
        else:
            self.counts, self.high = (
                np.concatenate([pair_counts, empty]),
                self.high + size,
            )


Cost = Callable[[np.ndarray, np.ndarray, float, float], float]
"""Function of bin centers, bin counts and both ends of a range."""

_LEVELS = 256
_MOST_CLIPPED = 0.01
_SHARES = np.linspace(1.0, 0.02, 99)


def best_range(histogram: Histogram, cost: Cost) -> tuple[float, float]:
    """Return the range with the lowest cost that contains zero.

    The search first scales both ends together, then one end at a time. The range is
    never wider than the observed values. Ties go to the widest range. Values in the bin
    around zero count as zero.
    """
    full = with_zero(histogram.least, histogram.most)
    is_used = histogram.counts > 0
    centers, counts = (
        histogram.centers[is_used],
        histogram.counts[is_used].astype(np.float64),
    )
    centers = np.clip(centers, histogram.least, histogram.most)
    centers[np.abs(centers) <= histogram.width / 2] = 0.0

    def best(candidates: list[tuple[float, float]]) -> tuple[float, float]:
        return min(candidates, key=lambda ends: cost(centers, counts, *ends))

    low, high = best([(full[0] * share, full[1] * share) for share in _SHARES])
    low, high = best([(low, high), *((low, full[1] * share) for share in _SHARES)])
    return best([(low, high), *((full[0] * share, high) for share in _SHARES)])


def with_zero(low: float, high: float) -> tuple[float, float]:
    """Return the range extended to contain zero. An all-zero range becomes [0, 1].

    Example:
        >>> with_zero(2.0, 3.0), with_zero(0.0, 0.0)
        ((0.0, 3.0), (0.0, 1.0))
    """
    low, high = min(low, 0.0), max(high, 0.0)
    return (low, high) if high > low else (0.0, 1.0)


def squared_error(
    centers: np.ndarray, counts: np.ndarray, low: float, high: float
) -> float:
    """Return the sum of squared errors of rounding to 256 levels in a range.

    Example:
        >>> squared_error(np.array([0.0, 1.0, 3.0]), np.array([5, 1, 2]), 0.0, 1.0)
        8.0
    """
    step = max(high - low, np.finfo(np.float64).tiny) / (_LEVELS - 1)
    zero = np.rint(-low / step)
    codes = np.clip(np.rint(centers / step) + zero, 0, _LEVELS - 1)
    return float(np.sum(counts * np.square(centers - (codes - zero) * step)))


def divergence(
    centers: np.ndarray, counts: np.ndarray, low: float, high: float
) -> float:
    """Return the Kullback-Leibler divergence from clipped to rounded values, in nats.

    The clipped distribution adds all outliers to its two ends. The rounded distribution
    ignores outliers and spreads the mass of each of the 256 levels evenly over its
    bins. Zeros are ignored: every range has an exact code for zero, and after a ReLU
    they would dominate the cost. The result is infinite if more than 1% of the nonzero
    values are outliers. Otherwise a range with few remaining values would have almost
    no cost.
    """
    counts, centers = counts[centers != 0], centers[centers != 0]
    inside = (centers >= low) & (centers <= high)
    if not inside.any() or counts[~inside].sum() > _MOST_CLIPPED * counts.sum():
        return np.inf
    inner_counts = counts[inside]
    clipped_counts = inner_counts.copy()
    clipped_counts[0] += counts[centers < low].sum()
    clipped_counts[-1] += counts[centers > high].sum()
    step = max(high - low, np.finfo(np.float64).tiny) / _LEVELS
    levels = np.minimum(((centers[inside] - low) / step).astype(int), _LEVELS - 1)
    mass, bins = (
        np.bincount(levels, w, _LEVELS)
        for w in (inner_counts, np.ones_like(inner_counts))
    )
    p = clipped_counts / clipped_counts.sum()
    q = (mass[levels] / bins[levels]) / inner_counts.sum()
    return float(np.sum(p * np.log(p / q)))
