"""Measures a model in each runtime and form, and recommends one.

Differences within noise are ignored.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import keras
import numpy as np
from rich.console import Console

from kerasmem.backends import device_kind
from kerasmem.checks import Whole, invalid
from kerasmem.compression.quantize.aware.learned import is_static
from kerasmem.compression.quantize.owners import quantized_variables
from kerasmem.errors import ChildDiedError, ConfigError, DataError, ModelError
from kerasmem.extras.litert.arguments import (
    with_named_inputs,
)
from kerasmem.extras.litert.forms import FORMS, Arrays, OperationForm, Runnable, Setup
from kerasmem.extras.litert.options import inputs_and_samples
from kerasmem.files.data import check_data, in_fixed_batches, needed_batch
from kerasmem.graph.clone import clone
from kerasmem.graph.layers import check_built
from kerasmem.records import BatchTime, RuntimeAdvice, RuntimeComparison, RuntimeFigures
from kerasmem.stats.difference import difference
from kerasmem.stats.timing import in_turns, spread
from kerasmem.types import Dataset, Model
from kerasmem.units import format_bytes, format_ms

_TURNS, _SECONDS = 100, 2.0
_LEAST_OUTPUT = 1e-6

Runnables = dict[OperationForm, Runnable]


def compare_runtimes(  # noqa: PLR0913 - the public entry point
    model: Model,
    data: Dataset = None,
    *,
    batch_sizes: Sequence[int] = (1, 32),
    threads: int = 1,
    tolerance: float | None = None,
    input_shape: Any | None = None,
    verbose: int = 1,
) -> RuntimeComparison:
    """Measure a float model in each runtime and form, and recommend one.

    The forms are the original model, the model with int8 weights in Keras, and LiteRT
    files. The schemes of the files are float, `"int8-dynamic"` and, with `data`,
    `"int8-static"`. The forms are timed in turns. Each then runs in a separate process
    that measures its memory. A form that cannot be created stays in the result, with
    the reason. A small model takes about one minute, most of it for these processes.

    Args:
        model: Built float `keras.Model`. Not modified.
        data: Samples for calibration, comparison and timing, in a form of
            `kerasmem.files.data`. Defaults to None: random samples and no
            `"int8-static"` form.
        batch_sizes: Sequence of ints >= 1. Batch sizes to time. Defaults to `(1, 32)`.
        threads: Int >= 1. Number of LiteRT threads. Keras uses all available threads.
            Defaults to 1.
        tolerance: Float. Maximum loss of a file. A file with a larger loss is not
            compared. Defaults to None, the default of `km.export`.
        input_shape: Shape of the input without the batch axis, to fix the open lengths
            of the model. One per input, by name or in order. Defaults to None.
        verbose: Int. 0 for silent, 1 for progress lines on stderr. Defaults to 1.

    Returns:
        A `RuntimeComparison` with the milliseconds per batch, the bytes of file,
        weights and process, the difference of the outputs, and the recommendations.

    Raises:
        ConfigError: If an argument is invalid.
        DataError: If the data does not fit the model or is not finite.
        ModelError: If the model is not built, is already quantized or cannot be copied.

    Example:
        >>> inputs = keras.Input((4,))
        >>> model = keras.Model(inputs, keras.layers.Dense(2)(inputs))
        >>> compare_runtimes(model, batch_sizes=[0])  # doctest: +ELLIPSIS
        Traceback (most recent call last):
        ...
        kerasmem.errors.ConfigError: The argument `batch_sizes` of compare_runtimes ...
        >>> found = compare_runtimes(model, batch_sizes=[1])  # doctest: +SKIP
        >>> print(found.advice[0].sentence)  # doctest: +SKIP
        Fastest, batch of 1: LiteRT, float, 0.004 ms (Keras, as it is: 0.6 ms).
    """
    sizes = _checked(model, batch_sizes)
    threads = Whole(1).check("compare_runtimes", "threads", threads)
    if data is not None:
        check_data(model, data)
        data = in_fixed_batches(needed_batch(model, data, sizes[-1]), data)
    model = with_named_inputs(model, data)
    say = _say if verbose else lambda _: None
    batch = _batch(model, data, sizes[-1], input_shape)
    # A model that cannot be copied can neither be quantized nor exported.
    files = {"tolerance": tolerance, "input_shape": input_shape}
    copy = clone(model)
    if getattr(copy, "preprocessor", None) is not None:
        copy.preprocessor = None  # the samples are token ids
    setup = Setup(copy, data, batch, sizes, threads, files)
    figures, runnables = _make(setup, say)
    times = _time(runnables, setup, say)
    for form, runnable in runnables.items():
        say(f"measuring the memory of {form.name}")
        figures[form] = replace(
            figures[form],
            times=times[form],
            file_bytes=runnable.file_bytes,
            weight_bytes=runnable.weight_bytes,
            **_resident(runnable, batch, say),
        )
    runtimes = tuple(figures.values())
    return RuntimeComparison(
        model=model.name,
        backend=keras.backend.backend(),
        device=device_kind(),
        threads=threads,
        samples=sizes[-1],
        with_data=data is not None,
        runtimes=runtimes,
        advice=advise(runtimes),
    )


def _say(message: str) -> None:
    console = Console(stderr=True, highlight=False)
    console.print(message, markup=False, soft_wrap=True)


def _checked(model: Model, batch_sizes: Sequence[int]) -> tuple[int, ...]:
    check_built(model)
    if is_static(model) or quantized_variables(model):
        raise ModelError(
            "Expected: a float model, which is quantized for the comparison. "
            f"Received: the quantized model {model.name!r}. Next: pass the original "
            "float model, or km.dequantize(model)."
        )
    if not isinstance(batch_sizes, Sequence) or not batch_sizes:
        valid = "a list of whole numbers from 1"
        raise invalid("compare_runtimes", "batch_sizes", batch_sizes, valid)
    rule = Whole(1)
    sizes = {rule.check("compare_runtimes", "batch_sizes", n) for n in batch_sizes}
    return tuple(sorted(sizes))


def _batch(model: Model, data: Dataset, size: int, input_shape: Any) -> Arrays:
    if data is None and not getattr(model, "inputs", None):
        raise ConfigError(
            f"The inputs of the model {model.name!r} are not known. Expected: data= "
            "with a few inputs. Received: data=None."
        )
    _, arrays = inputs_and_samples(model, data, size, input_shape=input_shape)
    if not all(np.isfinite(array).all() for array in arrays):
        raise DataError(
            "Expected: finite samples. Received: NaN or infinity in "
            f"the first {len(arrays[0])} samples."
        )
    return _rows(arrays, size)


def _rows(arrays: Arrays, size: int) -> Arrays:
    return [array[np.arange(size) % len(array)] for array in arrays]


def _make(
    setup: Setup, say: Callable[[str], Any]
) -> tuple[dict[OperationForm, RuntimeFigures], Runnables]:
    figures: dict[OperationForm, RuntimeFigures] = {}
    runnables: Runnables = {}
    first_outputs: Arrays | None = None
    for form in FORMS:
        say(f"making {form.name}")
        plain = RuntimeFigures(
            name=form.name, how=form.how, needs_keras=form.needs_keras
        )
        try:
            runnable = form.make(setup)
            outputs = runnable.outputs(setup.batch)
            first_outputs = outputs if first_outputs is None else first_outputs
            apart = difference(outputs, first_outputs, _LEAST_OUTPUT)
        except (ConfigError, DataError, ModelError, ChildDiedError) as error:
            figures[form] = replace(plain, reason=" ".join(str(error).split()))
            continue
        figures[form], runnables[form] = replace(plain, difference=apart), runnable
    return figures, runnables


def _time(
    runnables: Runnables, setup: Setup, say: Callable[[str], Any]
) -> dict[OperationForm, tuple[BatchTime, ...]]:
    times: dict[OperationForm, list[BatchTime]] = {form: [] for form in runnables}
    for size in setup.batch_sizes:
        say(f"timing batches of {size}")
        batch = _rows(setup.batch, size)
        calls = [runnable.run(batch) for runnable in runnables.values()]
        for form, seconds in zip(
            runnables, in_turns(calls, _TURNS, _SECONDS), strict=True
        ):
            low, median, high = spread(seconds)
            times[form].append(BatchTime(size, median, low, high))
    return {form: tuple(seconds) for form, seconds in times.items()}


def _resident(
    runnable: Runnable, batch: Arrays, say: Callable[[str], Any]
) -> dict[str, int | None]:
    try:
        return runnable.resident(batch)._asdict()
    except (ModelError, ChildDiedError) as error:
        say(f"not measured: {error}")
        return {}


RESIDENT_NOISE = 0.05
"""Relative difference of the resident memory of two equal runs."""


@dataclass(frozen=True)
class _Figure:
    """A figure that should be low, and the low end of its noise."""

    value: float
    low: float
    text: str


def advise(runtimes: Sequence[RuntimeFigures]) -> tuple[RuntimeAdvice, ...]:
    """Return recommendations: the form with the lowest figure for each use.

    The original model comes first. Forms with a reason or without the figure are
    ignored.
    """
    sizes = [time.batch_size for time in runtimes[0].times]
    best_choices = [
        _best(f"fastest, batch of {size}", runtimes, _time_of(size)) for size in sizes
    ]
    best_choices += [
        _best("least memory, runtime included", runtimes, _process),
        _best("smallest file", runtimes, _bytes_of("file_bytes")),
    ]
    alone = [each for each in runtimes if not each.needs_keras]
    best_choices += [
        _best(f"fastest without Keras, batch of {size}", alone, _time_of(size))
        for size in sizes[:1]
    ]
    within = [each for each in runtimes if each.needs_keras]
    best_choices.append(
        _best("least weights in Keras", within, _bytes_of("weight_bytes"))
    )
    return tuple(advice for advice in best_choices if advice is not None)


def _best(
    use: str,
    runtimes: Sequence[RuntimeFigures],
    figure: Callable[[RuntimeFigures], _Figure | None],
) -> RuntimeAdvice | None:
    candidates = [
        (each, value)
        for each in runtimes
        if not each.reason and (value := figure(each)) is not None
    ]
    if not candidates:
        return None
    best, least = min(candidates, key=lambda pair: pair[1].value)
    others = [
        each.name
        for each, value in candidates
        if each is not best and value.low <= least.value
    ]
    sentences = [f"{use[0].upper()}{use[1:]}: {best.name}, {least.text}"]
    first, base = candidates[0]
    if first is not best and first.name not in others:
        sentences.append(f" ({first.name}: {base.text})")
    sentences.append(_how_exact(best))
    if others:
        sentences.append(f"; not clearly worse: {'; '.join(others)}")
    return RuntimeAdvice(use, best.name, tuple(others), f"{''.join(sentences)}.")


def _how_exact(best: RuntimeFigures) -> str:
    if best.difference is None or best.difference <= 1e-4:
        return ""
    return f"; outputs differ by up to {100 * best.difference:.2g} %"


def _time_of(batch_size: int) -> Callable[[RuntimeFigures], _Figure | None]:
    def figure(runtime: RuntimeFigures) -> _Figure | None:
        time = runtime.time(batch_size)
        if time is None:
            return None
        ms = time.milliseconds
        return _Figure(ms, time.low_ms, format_ms(ms))

    return figure


def _bytes_of(name: str) -> Callable[[RuntimeFigures], _Figure | None]:
    def figure(runtime: RuntimeFigures) -> _Figure | None:
        size = getattr(runtime, name)
        return None if size is None else _Figure(size, size, format_bytes(size))

    return figure


def _process(runtime: RuntimeFigures) -> _Figure | None:
    size = runtime.process_bytes
    if size is None:
        return None
    return _Figure(size, size / (1 + RESIDENT_NOISE), format_bytes(size))
