"""The one function that says which batch size fits."""

import time
from collections.abc import Callable, Sequence
from typing import Any

from kerasmem.backends import device_kind
from kerasmem.errors import ConfigError, ModelError
from kerasmem.memory.batch_size.search import Search, predictor
from kerasmem.memory.batch_size.trial import (
    USABLE,
    USABLE_BY_THREADS,
    BatchSize,
    CurvePoint,
    Limit,
    Trial,
    attempt,
    check_limit,
    environment,
    limit_in_bytes,
)
from kerasmem.memory.estimate.checks import check_model
from kerasmem.memory.estimate.estimate import checked_request
from kerasmem.memory.estimate.request import Request
from kerasmem.memory.estimate.variables import persistent_parts
from kerasmem.units import format_bytes


def find_batch_size(  # noqa: PLR0913 - a public entry point
    model: Any,
    memory_limit: int | str | None = None,
    *,
    optimizer: Any | None = None,
    training: bool = True,
    input_shape: Any | None = None,
    data: Any | None = None,
    largest: int = 8192,
) -> BatchSize:
    """Return the largest batch size that fits: estimated, then tried for real.

    The trials run a few steps on zeros in processes of their own, on the device of the
    running backend, so that one that runs out of memory hurts nobody; at most two do.
    What is found leaves a twenty-fifth of the memory for the batch free, because near a
    limit one step may run and the next may not. TensorFlow's allocator, and torch's on
    a GPU, keep to the limit as they would in training; elsewhere the bytes that a step
    needs are counted and compared with it. On a CPU TensorFlow runs the trials in one
    thread. The model stays as it is.

    Args:
        model: a built `keras.Model`.
        memory_limit: bytes or a text such as `"8GiB"`; None for what the device has
            free.
        optimizer: an optimizer or its name; None for the compiled one.
        training: True for training, False for `predict`.
        input_shape: shape of the input without the batch axis, if the model leaves
            lengths open, as in `estimate_memory`.
        data: example samples, from which these lengths are read instead.
        largest: no larger batch is tried, from 1.

    Returns:
        An int, with `limit_bytes`, `curve` (the peak by batch size, predicted and
        measured) and `trials`.

    Raises:
        ConfigError: if the limit is below what one sample needs, or another argument
            is wrong.
        DataError: if the data does not fit the model.
        ModelError: if the model is not built, its batch size is fixed, its input shape
            is not known, or it cannot go to another process.
    """
    check_model(model)
    if type(largest) is not int or largest < 1:
        raise ConfigError(
            f"`largest` is a number of samples from 1. Received: {largest=}."
        )
    _check_free_batch(model)
    limit = limit_in_bytes(memory_limit, device_kind())
    request = checked_request(
        model,
        1,
        optimizer=optimizer,
        training=training,
        device=device_kind(),
        input_shape=input_shape,
        data=data,
    )
    search = search_for(request, limit, range(1, largest + 1))
    search.run()
    return _found(search, limit)


def search_for(
    request: Request,
    limit_bytes: int,
    sizes: Sequence[int],
    *,
    predict: Callable[[int], int] | None = None,
    seconds: float | None = None,
    one_thread: bool = True,
) -> Search:
    """Return a search for the largest batch that runs within a limit.

    Args:
        request: the question, for any batch size.
        limit_bytes: the limit.
        sizes: those that may be tried, from 1 and rising.
        predict: returns the estimated peak of a batch size, in bytes; it grows. None
            for that of `predictor`, once the limit is seen to be of use.
        seconds: how long it may take, counted from now; then the next trial, or the
            running one, raises a TimeoutError. None for as long as it takes.
        one_thread: as of `environment`; with several there is more to spare.

    Raises:
        ConfigError: if the limit is below what the variables take.
    """
    fixed = sum(part.nbytes for part in persistent_parts(request))
    check_limit(limit_bytes, fixed)
    usable = USABLE if one_thread else USABLE_BY_THREADS
    limit = Limit.beside(fixed, limit_bytes, usable)
    kept = environment(
        limit_bytes, request.backend, request.device, one_thread=one_thread
    )
    end = None if seconds is None else time.monotonic() + seconds

    def tried(size: int) -> Trial:
        left = None if end is None else max(end - time.monotonic(), 0.0)
        return attempt(request.with_batch_size(size), limit, kept, left)

    return Search(
        predict=predict or predictor(request, sizes[-1]),
        attempt=tried,
        limit_bytes=limit.usable_bytes,
        fixed_bytes=fixed,
        sizes=sizes,
    )


def _found(search: Search, limit: int) -> BatchSize:
    found = max((t.batch_size for t in search.trials if t.fits), default=0)
    if not found:
        smallest = min(search.trials, key=lambda trial: trial.batch_size)
        raise ConfigError(
            "No batch size fits into the limit that was tried, down to "
            f"{smallest.batch_size}: {smallest.reason}. Expected: a limit above "
            f"{format_bytes(search.predict(1))}, estimated for one sample. Received: "
            f"memory_limit={format_bytes(limit)}."
        )
    measured = {trial.batch_size: trial.peak_bytes for trial in search.trials}
    powers = {1 << power for power in range((2 * found).bit_length())}
    curve = tuple(
        CurvePoint(size, search.corrected(size), measured.get(size))
        for size in sorted(powers | set(measured))
    )
    return BatchSize(found, limit_bytes=limit, curve=curve, trials=tuple(search.trials))


def _check_free_batch(model: Any) -> None:
    inputs = model.inputs if isinstance(getattr(model, "inputs", None), list) else []
    fixed = [x for x in inputs if x.shape and x.shape[0] is not None]
    if fixed:
        raise ModelError(
            f"The model {model.name!r} takes batches of one size only. Expected: an "
            "input whose batch axis is None. Received: input "
            f"{fixed[0].name!r} of shape {tuple(fixed[0].shape)}. Next: make the "
            "model with keras.Input(shape) without batch_size."
        )
