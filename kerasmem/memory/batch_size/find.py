"""Finds the largest batch size that fits, from an estimate and a few trials."""

import functools
from bisect import bisect_right
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import accumulate
from typing import Any

from kerasmem.backends import device_kind
from kerasmem.checks import Whole
from kerasmem.errors import ChildDiedError, ConfigError, ModelError
from kerasmem.graph.input_shapes import fixed_batch
from kerasmem.graph.layers import has_graph
from kerasmem.memory.batch_size.trial import (
    ONE_THREAD,
    USABLE,
    BatchSize,
    BatchSizeTrial,
    CurvePoint,
    attempt,
    limit_in_bytes,
    ran_out_of_memory,
)
from kerasmem.memory.estimate.device_specs import usable_bytes
from kerasmem.memory.estimate.estimate import METHODS, checked_request
from kerasmem.memory.estimate.measured import COUNTING_ALLOCATOR, peak_in_process
from kerasmem.memory.estimate.request import Request, custom_step_errors, request_of
from kerasmem.memory.estimate.sharding import ONE_DEVICE
from kerasmem.memory.estimate.traced.on_xla import estimate_in_process
from kerasmem.memory.estimate.unbuilt import built_model
from kerasmem.memory.estimate.variables import persistent_bytes
from kerasmem.processes import ON_THE_CPU, run_in_child
from kerasmem.types import Dataset, Model, Optimizer
from kerasmem.units import format_bytes, parse_bytes

_SMALL = (8, 16)

TOLERANCE = 1.06
"""The search ends if this multiple of a batch size that fits is known to fail."""

_CAUTION = 1.2  # The first trial fits even if the true peak is 1.2 times the estimate.
_PROBE = 1.05
_BOLDNESS = 0.7
MOST_FAILURES = 2
MOST_TRIALS = 16
"""Maximum number of trials of a search."""


@dataclass
class BatchSizeSearch:
    """Searches for the largest batch size that fits.

    Args:
        predict: Increasing function from a batch size to its estimated peak in bytes.
        attempt: Tests a batch size.
        limit_bytes: Memory limit in bytes.
        fixed_bytes: Bytes in use for any batch size.
        sizes: Allowed batch sizes, ascending.
        most_failures: Number of failed trials that ends the search if another fits.
    """

    predict: Callable[[int], int]
    attempt: Callable[[int], BatchSizeTrial]
    limit_bytes: int
    fixed_bytes: int
    sizes: Sequence[int]
    most_failures: int = MOST_FAILURES
    trials: list[BatchSizeTrial] = field(default_factory=list)

    def run(self) -> int:
        """Return the largest batch size that fits, 0 if no trial succeeded."""
        while not self._is_done():
            self.trials.append(self.attempt(self._next()))
        return self._fits

    def corrected(self, batch_size: int) -> int:
        """Return the estimated peak, corrected by the trials with the largest batches.

        The peak is linear in the estimate: through two trials, or through one trial and
        the bytes in use for any batch size.
        """
        peaks = {t.batch_size: t.peak_bytes for t in self.trials if t.peak_bytes}
        if not peaks:
            return self.predict(batch_size)
        points = [(self.predict(size), peaks[size]) for size in sorted(peaks)]
        *_, (first, low), (last, high) = (self.fixed_bytes,) * 2, *points
        if len(points) > 1 and not (first < last and low < high):
            first, low = self.fixed_bytes, self.fixed_bytes
        slope = max(high - low, 1) / max(last - first, 1)
        return low + round(slope * (self.predict(batch_size) - first))

    @property
    def _fits(self) -> int:
        return max((t.batch_size for t in self.trials if t.fits), default=0)

    @property
    def _fails(self) -> int | None:
        return min((t.batch_size for t in self.trials if not t.fits), default=None)

    @property
    def _failures(self) -> int:
        return sum(not trial.fits for trial in self.trials)

    def _is_done(self) -> bool:
        fails, fits = self._fails, self._fits
        if len(self.trials) >= MOST_TRIALS:
            return True
        if fits and self._failures >= self.most_failures:
            return True
        if fails is None:
            return fits >= self.sizes[-1]
        return fails <= max(self._above(fits), int(TOLERANCE * fits))

    def _above(self, size: int) -> int:
        return self.sizes[bisect_right(self.sizes, size)]

    def _next(self) -> int:
        below = bisect_right(self.sizes, self._wanted())
        size = self.sizes[max(below - 1, 0)]
        return size if size > self._fits else self._above(self._fits)

    def _wanted(self) -> int:
        fits, fails = self._fits, self._fails
        if not self.trials:
            return self._most(lambda size: self.predict(size) * _CAUTION)
        if fails is None:
            probe = max(fits + 1, round(_PROBE * fits))
            return max(self._most(self.corrected), probe)
        if not fits:
            peak_is_known = any(trial.peak_bytes is not None for trial in self.trials)
            most = self._most(self.corrected) if peak_is_known else fails
            return max(min(most, fails // 2), 1)
        # If this batch size fails too, the search is within the tolerance.
        close = max(fits + 1, int(TOLERANCE * fits))
        if any(trial.peak_bytes is not None for trial in self.trials):
            target = min(self._most(self.corrected), fails)
            close = max(close, fits + int(_BOLDNESS * (target - fits)))
        return min(close, fails - 1)

    def _most(self, peak: Callable[[int], float]) -> int:
        fitting = bisect_right(self.sizes, self.limit_bytes, key=peak)
        return self.sizes[max(fitting - 1, 0)]


def find_batch_size(  # noqa: PLR0913 - a public entry point
    model: Model,
    memory_limit: int | str | None = None,
    *,
    optimizer: Optimizer | None = None,
    training: bool = True,
    input_shape: Any | None = None,
    data: Dataset | None = None,
    largest: int = 8192,
    device: str | None = None,
) -> BatchSize:
    """Find the largest batch size that fits, from an estimate and a few real trials.

    A trial runs a few steps on zeros in a child process, on the device of the current
    backend. If a batch fits, the search ends after two trials that do not fit. 4 % of
    the memory that is available for the batch stays free, because steps near the limit
    fail at random. TensorFlow's allocator, and torch's on a GPU, enforce the limit
    during a trial. In all other cases, the peak of a step is compared with the limit.
    On a CPU, TensorFlow trials use one thread. The model is not changed.

    Args:
        model: A `keras.Model`. An unbuilt model needs `input_shape` or `data`.
        memory_limit: An integer of bytes or a text such as `"8GiB"`. Defaults to the
            free memory of the device, or 95 % of the memory of `device`.
        optimizer: An optimizer or its name. Defaults to the compiled optimizer.
        training: Boolean. `True` for training, `False` for `predict`. Defaults to
            `True`.
        input_shape: Input shape without the batch axis, for models with variable
            lengths, as in `estimate_memory`.
        data: Example samples that define lengths, labels and sample weights.
        largest: Integer, at least 1. Upper bound of the batch size. With `device`, at
            least the number of replicas. Defaults to 8192.
        device: Name of a GPU such as `"h100"`, which need not be installed. Trials are
            then compiled plans, as with `estimate_memory(..., method="plan")`, and no
            step runs. Defaults to the device of the current backend.

    Returns:
        An integer with the attributes `limit_bytes`, `curve` (predicted and measured
        peak per batch size) and `trials`.

    Raises:
        ConfigError: If the limit is too small for one sample, or another argument is
            invalid.
        DataError: If the data does not fit the model.
        ChildDiedError: If a trial fails with an error other than out of memory.
        ModelError: If the model cannot be built or sent to another process, or if its
            batch size is fixed or its input shape unknown.

    Example:
        >>> import keras
        >>> model = keras.Sequential([keras.Input((64,)), keras.layers.Dense(64)])
        >>> find_batch_size(model, "8KiB", optimizer="sgd")  # doctest: +ELLIPSIS
        Traceback (most recent call last):
        ...
        kerasmem.errors.ConfigError: The limit is too small for the variables of ...
        >>> int(find_batch_size(model, "8GiB", optimizer="sgd"))  # doctest: +SKIP
        8192
    """
    model = built_model(model, input_shape, data)
    largest = Whole(1).check("find_batch_size", "largest", largest)
    _check_free_batch(model)
    if device is None:
        limit = limit_in_bytes(memory_limit, device_kind())
    else:
        limit = parse_bytes(
            usable_bytes(device) if memory_limit is None else memory_limit,
            "find_batch_size",
            "memory_limit",
        )
    request = checked_request(
        model,
        1,
        optimizer=optimizer,
        jit_compile=None if device is None else True,
        training=training,
        device=device or device_kind(),
        input_shape=input_shape,
        data=data,
    )
    if device is None:
        # The trials use one device.
        request = replace(request, sharding=ONE_DEVICE)
        sizes = range(1, largest + 1)
    else:
        parts = request.sharding.replicas
        Whole(parts).check("find_batch_size", "largest", largest)
        sizes = range(parts, largest + 1, parts)
    search = _search(request, limit, sizes, by_plans=device is not None)
    search.run()
    return _result(search, limit)


def _search(
    request: Request, limit_bytes: int, sizes: Sequence[int], *, by_plans: bool
) -> BatchSizeSearch:
    fixed_bytes = persistent_bytes(request)
    if limit_bytes <= fixed_bytes:
        raise ConfigError(
            "The limit is too small for the variables of the model. Expected: more "
            f"than {format_bytes(fixed_bytes)}. Received: "
            f"memory_limit={format_bytes(limit_bytes)}."
        )
    usable = fixed_bytes + round(USABLE * (limit_bytes - fixed_bytes))

    def tried(size: int) -> BatchSizeTrial:
        return attempt(request.with_batch_size(size), limit_bytes, usable)

    def planned(size: int) -> BatchSizeTrial:
        peak = METHODS["plan"](request.with_batch_size(size)).peak_bytes
        fits = peak <= usable
        return BatchSizeTrial(
            size, fits, peak, "" if fits else f"{format_bytes(peak)} planned"
        )

    return BatchSizeSearch(
        predict=predictor(request, sizes[-1]),
        attempt=planned if by_plans else tried,
        limit_bytes=usable,
        fixed_bytes=fixed_bytes,
        sizes=sizes,
        # Plans cannot run out of memory, so their failures are not limited.
        most_failures=MOST_TRIALS if by_plans else MOST_FAILURES,
    )


def _result(search: BatchSizeSearch, limit: int) -> BatchSize:
    largest = max((t.batch_size for t in search.trials if t.fits), default=0)
    if not largest:
        smallest = min(search.trials, key=lambda trial: trial.batch_size)
        need = max(search.corrected(smallest.batch_size), limit)
        raise ConfigError(
            f"No tested batch size fits into the limit, down to {smallest.batch_size}: "
            f"{smallest.reason}. Expected: a limit above {format_bytes(need)}. "
            f"Received: memory_limit={format_bytes(limit)}."
        )
    peaks = {trial.batch_size: trial.peak_bytes for trial in search.trials}
    powers = {1 << power for power in range((2 * largest).bit_length())}
    curve = tuple(
        CurvePoint(size, search.corrected(size), peaks.get(size))
        for size in sorted(powers | set(peaks))
    )
    return BatchSize(
        largest, limit_bytes=limit, curve=curve, trials=tuple(search.trials)
    )


def _check_free_batch(model: Model) -> None:
    size = fixed_batch(model)
    if size is not None:
        raise ModelError(
            f"The model {model.name!r} has a fixed batch size. Expected: a model "
            "without stateful layers, built with keras.Input(shape) without "
            f"batch_size. Received: batch size {size}."
        )


def predictor(request: Request, largest: int) -> Callable[[int], int]:
    """Return an increasing function from batch size to estimated peak in bytes."""
    estimate = METHODS["analytic" if has_graph(request.model) else "traced"]

    @functools.cache
    def estimated(size: int) -> int:
        return estimate(request.with_batch_size(size)).peak_bytes

    if request.device == "gpu":
        return estimated
    # The interpolation needs at least two sizes.
    sizes = [1 << power for power in range(max(largest - 1, 1).bit_length() + 1)]
    try:
        answer = run_in_child(
            f"{__name__}:answer",
            {**request.job(), "sizes": sizes},
            backend=request.backend,
            environment={**ON_THE_CPU, **COUNTING_ALLOCATOR, **ONE_THREAD},
            doing=f"Measuring batches of up to {_SMALL[1]} samples",
        )
    except ChildDiedError as error:
        if not ran_out_of_memory(error):
            raise
        return estimated
    # The order of operations varies from step to step. A larger batch can therefore
    # reach the peak measured for a smaller batch.
    peaks = list(accumulate(answer["peaks"], max))
    return functools.partial(_between, sizes, peaks)


def answer(job: Mapping[str, Any]) -> dict[str, list[int]]:
    """Return the peaks on the CPU of this machine. Runs in the child process."""
    request, sizes = request_of(job), job["sizes"]
    with custom_step_errors(request):
        low, high = (_peak(request.with_batch_size(size)) for size in _SMALL)
    slope = (high - low) / (_SMALL[1] - _SMALL[0])
    return {"peaks": [round(high + slope * (size - _SMALL[1])) for size in sizes]}


def _peak(request: Request) -> int:
    if request.backend == "jax":
        return estimate_in_process(request).peak_bytes
    return peak_in_process(request)


def _between(sizes: Sequence[int], peaks: Sequence[int], batch_size: int) -> int:
    place = min(max(bisect_right(sizes, batch_size), 1), len(sizes) - 1)
    low, high = sizes[place - 1], sizes[place]
    slope = (peaks[place] - peaks[place - 1]) / (high - low)
    return round(peaks[place - 1] + slope * (batch_size - low))
