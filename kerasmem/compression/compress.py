"""Compresses a model and reports its size and metrics before and after."""

import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Executor
from contextlib import ExitStack, contextmanager, nullcontext
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import keras
import numpy as np

from kerasmem.backends.seeding import seeded
from kerasmem.checks import Whole
from kerasmem.compression.chain import Chain, Outcome
from kerasmem.compression.judge import (
    chance_of,
    check_max_drop,
    far_worse,
    lacks_labels,
)
from kerasmem.compression.measure import (
    ACTIVATIONS,
    FILE,
    LATENCY,
    METRICS,
    WEIGHTS,
    check_figures,
    figures,
    latencies_or_warning,
)
from kerasmem.compression.presets import check_output_of
from kerasmem.compression.quantize.apply import warn_if_left_float
from kerasmem.compression.result import SAMPLES, CompressionResult
from kerasmem.compression.search import SearchRequest
from kerasmem.compression.sources import compile_anew, source_of
from kerasmem.compression.technique import Context, Technique
from kerasmem.errors import (
    ConfigError,
    DataError,
    KerasMemError,
    KerasMemWarning,
    first_line,
    text_of,
)
from kerasmem.files.data import (
    check_data,
    check_ends,
    check_labels,
    check_shared,
    fit_arguments,
    in_fixed_batches,
    needed_batch,
    sample_count,
    sample_inputs,
)
from kerasmem.files.data.tokens import are_texts, as_samples
from kerasmem.files.save import Coding
from kerasmem.files.weights import CODINGS
from kerasmem.graph.clone import clone
from kerasmem.graph.layers import has_own_step
from kerasmem.graph.outputs import warn_if_unfit
from kerasmem.records import CompressionReport, ModelFigures
from kerasmem.stages import OPENING, announced, stage
from kerasmem.types import Dataset, Model

BATCH_SIZE = 32

_MEASURED = (FILE, WEIGHTS, METRICS)
"""Figures to report by default. Metrics are then left out without samples."""

_TIMING_SECONDS = 2.0
"""Time budget for the latency of both models together."""

_NO_ACTIVATIONS = (
    "No peak of the activations was measured: the model has no graph or accepts inputs "
    "of several lengths. Next: use km.estimate_memory with input_shape=."
)

_NO_LOSS = "the model has no loss. Next: give loss= (--loss on the command line)"


def compress(  # noqa: PLR0913 - the public entry point, see the design
    model_or_path: Any,
    steps: Technique | Sequence[Technique] | str | Path | None = None,
    *,
    data: Dataset = None,
    validation_data: Dataset = None,
    fine_tune_epochs: int | None = None,
    target: Mapping[str, float | str] | None = None,
    max_drop: float | None = None,
    loss: Any = None,
    metrics: Any = None,
    custom_objects: dict[str, Any] | None = None,
    seed: int | None = None,
    batch_size: int = BATCH_SIZE,
    callbacks: Sequence[Any] | None = None,
    coding: Coding | None = None,
    time_budget: float | None = None,
    parallel: str | Executor | None = None,
    verbose: int = 1,
    output: str | Path | None = None,
    low_memory: bool | None = None,
    measure: str | Sequence[str] = _MEASURED,
) -> CompressionResult:
    """Compresses a model.

    The techniques are applied in order to a copy; the input model is not changed.
    Without `steps`, `compress` searches for them. With `target`, the search returns the
    model that meets the target with the smallest drop of the first metric. Without
    `target`, it returns the smallest file within `max_drop`.

    Args:
        model_or_path: A built `keras.Model`, or the path of a file that
            `km.load_model` can load.
        steps: A technique, a list of techniques, the path of a recipe or the name of a
            preset. A recipe is a JSON or YAML file with a list of steps. Presets are
            `"size"`, `"latency"`, `"balanced"` and `"lossless"`. `None` starts a
            search, which needs `target` or `max_drop`. Defaults to `None`.
        data: Training samples: `(x, y)`, `(x, y, sample_weight)`, a `tf.data.Dataset`
            or a `keras.utils.PyDataset`. For a language model of KerasHub with a
            tokenizer also a list of texts, or the path of a `.txt` file. A search needs
            arrays with at least 100 samples, and holds out one fifth of them to
            evaluate its trials.
        validation_data: Validation samples in the same forms. Without them no metrics
            are measured. A search does not use them before its final choice.
        fine_tune_epochs: Integer. Epochs of training on `data` after each technique
            that leaves the model trainable. Optimizer settings, loss and metrics are
            taken from the model; each technique starts with a new optimizer. Pruned
            weights stay zero. Defaults to the epochs of the preset, 2 in a search, and
            0 otherwise.
        target: Dict of upper limits for a search, in place of `steps`. Keys are
            `"file_bytes"`, `"weight_bytes"`, `"activation_bytes"` per sample,
            `"latency_ms"` per batch and `"flops"` per sample. Sizes can be text, such
            as `"200KiB"`.
        max_drop: Float. Maximum allowed drop of the first compiled metric (or increase
            of the loss if there is none). 0.005 is half a point of accuracy. Needs
            `validation_data`. A search needs both `data` and `validation_data`, with
            different samples. Its trials must stay within this limit by a margin of 2.5
            standard errors.
        loss: Loss that replaces the loss of the model. The metrics stay. A name can
            have arguments: `"sparse_categorical_crossentropy(from_logits=True)"`.
        metrics: Metrics that replace the metrics of the model.
        custom_objects: Dict of custom layers and functions by name, to load a path.
        seed: Integer seed for fine-tuning and search. A search for `"latency_ms"` or
            with `time_budget` is not reproducible.
        batch_size: Integer. Number of samples per batch, unless `data` is batched.
            Defaults to 32.
        callbacks: List of Keras callbacks for fine-tuning. It does not evaluate
            `validation_data`, so monitor `"loss"` in place of `"val_loss"`.
        coding: Coding of the file, as in `km.save_model`. `"entropy"` files are smaller
            but need `import kerasmem` to load. Defaults to the coding of the preset,
            otherwise `"deflate"`.
        time_budget: Float. Seconds after which a search returns its best model so far.
        parallel: How a search runs its trials in parallel. A
            `concurrent.futures.Executor` must use spawned processes. `"isolated"` runs
            each family of trials sequentially in a separate process, which returns all
            its memory. A seed gives the same result in all modes. Callbacks are copied.
        verbose: 0 or 1. 1 prints to stderr: one line per trial of a search, and stages
            that take more than ten seconds. Defaults to 1.
        output: Path of the `.keras` file to write. For a KerasHub preset, also a new
            folder. Defaults to `None`, which writes nothing.
        low_memory: If `True`, weights stay on disk and are loaded one at a time, each
            in up to three copies. `result.model` then loads on first access. Needs a
            path and an `output`. Works with `Cluster`, `Prune` by magnitude, and
            `Quantize` with nearest rounding and without awq scales. With samples, the
            model runs layer by layer. `None` does this where possible if the weights
            exceed one sixth of the available memory. A KerasHub preset that is written
            to a new folder, without samples, always uses it where possible. `False`
            disables it. Defaults to `None`.
        measure: Figures to report for both models: any of `"file"`, `"weights"`,
            `"metrics"` (needs `validation_data`), `"activations"` and `"latency"`.
            Figures that `max_drop` and `target` need are always measured. Defaults to
            the first two, and to metrics with `validation_data`.

    Returns:
        A `km.CompressionResult` with the compressed model, a report on both models and
        the change of every weight. The model is compiled like the original.

    Raises:
        ConfigError: If arguments are invalid or cannot be combined.
        DataError: If the data does not fit the model.
        ModelError: If a technique has nothing to change, or training produced NaN or
            infinite weights.
        ModelFileError: If the file cannot be loaded.
        OutputError: If `output` cannot be written.
        TargetError: If the metric drops by more than `max_drop`, or a search does not
            reach `target`. The `result` of the error is the closest model.

    Example:
        >>> import kerasmem as km
        >>> model = keras.Sequential([keras.Input((64,)), keras.layers.Dense(64)])
        >>> result = km.compress(model, km.Quantize("int8"))
        >>> before, after = result.report.before, result.report.after
        >>> after.weight_bytes < before.weight_bytes / 2
        True
    """
    job: Chain | SearchRequest
    if steps is None and (target is not None or max_drop is not None):
        job = SearchRequest.of(target, max_drop, time_budget, verbose, parallel)
    else:
        _check_no_search(target=target, time_budget=time_budget, parallel=parallel)
        job = Chain(steps, max_drop)
    epochs = job.epochs if fine_tune_epochs is None else fine_tune_epochs
    check_output_of(model_or_path, output, coding)
    coding = coding or job.coding
    Whole(0).check("compress", "fine_tune_epochs", epochs)
    job.check(data, validation_data, epochs)
    check_max_drop(max_drop, validation_data)
    CODINGS.check("compress", "coding", coding)
    check_ends(validation_data, "judging")
    figure_names = (*check_figures(measure, "compress"), *job.figures)
    _check_metrics(measure, validation_data)
    name = "data of tokens" if are_texts(data) else "data"
    asks = {name: data, "validation_data": validation_data, "max_drop": max_drop}
    asks |= {"loss": loss, "metrics": metrics}
    asks |= {"fine_tune_epochs": epochs or None, "callbacks": callbacks or None}
    asks["measure='latency'"] = True if LATENCY in figure_names else None
    techniques = getattr(job, "steps", None)
    stage(OPENING)
    source = source_of(
        model_or_path, output, custom_objects, low_memory, techniques, asks
    )
    writer = source.writer(output)
    waits = announced() if verbose else nullcontext()
    with ExitStack() as scope, waits, seeded(seed), source.opened() as original:
        data, validation_data = as_samples(original, data, validation_data)
        is_evaluated = validation_data is not None and METRICS in figure_names
        is_ours, model = original is not model_or_path, original
        if not is_ours:  # then it is neither run nor compiled
            # JAX frees the values of a model that it evaluates or trains.
            model = clone(original, shares=job.freezes and not is_evaluated)
        if loss is not None or metrics is not None:
            compile_anew(model, loss, metrics)
        _check_loss(model.name, model.compiled, epochs)
        _check_samples(model, (data, validation_data), batch_size, epochs)
        size_of = partial(needed_batch, original, batch_size=batch_size)
        data, validation_data = _in_batches(job, size_of, (data, validation_data))
        fit = {} if data is None else fit_arguments(data, batch_size)
        # Fail before the work if the data can be iterated only once.
        few = _few_samples(data if validation_data is None else validation_data)
        fit |= {"callbacks": list(callbacks or ()), "verbose": 0}
        context = Context(data, fit, epochs, seed, custom_objects, original)
        compress_copy = job.prepare(model, context, coding, validation_data)
        judging = (validation_data, batch_size)
        stage("measuring the original model")
        size = source.size() if FILE in figure_names else None
        with _data_errors():
            before = figures(model, *judging, size, figure_names)
        if is_evaluated and not before.metrics:
            _warn_without_metric(model.compiled)
        if ACTIVATIONS in measure and before.activation_peak_bytes is None:
            warnings.warn(_NO_ACTIVATIONS, KerasMemWarning, stacklevel=2)
        copies = [] if is_ours else [model]
        del model  # the steps free a copy that they replace
        with _labels_named(bool(epochs) and lacks_labels(data)):
            outcome = compress_copy(copies)
        stage("writing the file")
        # Exited last, because the output may replace the input file.
        place = scope.enter_context(writer.place())
        if FILE in figure_names or output is not None:
            size = writer.write(outcome.model, place, coding)
        stage("measuring the compressed model")
        with _data_errors():
            after = figures(outcome.model, *judging, size, figure_names)
            if LATENCY in figure_names:
                models = [original if is_ours else clone(original), outcome.model]
                times = latencies_or_warning(models, *judging, _TIMING_SECONDS)
                before, after = replace(before, **times[0]), replace(after, **times[1])
        report = _report(before, after, outcome, validation_data)
        changes = tuple(outcome.changes)
        result = CompressionResult(outcome.model, report, changes, coding, few)
        job.judge(result)  # before an existing file is replaced
    warn_if_left_float(changes)
    source.leave(result, output)
    return result


def _check_metrics(measure: Any, validation_data: Dataset) -> None:
    if METRICS in measure and validation_data is None and measure is not _MEASURED:
        raise ConfigError(
            "Metrics are measured on labeled samples. Received: "
            f"measure={measure!r}, validation_data=None. Next: give "
            "validation_data=(x, y)."
        )


@contextmanager
def _data_errors() -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise DataError(
            f"The data could not be read: {type(error).__name__}: {error}"
        ) from error


@contextmanager
def _labels_named(is_unlabeled: bool) -> Iterator[None]:  # noqa: FBT001
    try:
        yield
    except Exception as error:
        if not is_unlabeled or isinstance(error, KerasMemError):
            raise
        raise DataError(
            "Fine-tuning without labels failed. Received: "
            f"{type(error).__name__}: {first_line(text_of(error))} Next: give "
            "data=(x, y) if the loss or `train_step` of the model needs labels."
        ) from error


def _check_loss(name: str, is_compiled: bool, epochs: int) -> None:  # noqa: FBT001
    if epochs and not is_compiled:
        raise ConfigError(
            f"The model {name!r} has no loss, so it cannot be fine-tuned. Next: give "
            "loss= (--loss on the command line)."
        )


def _check_samples(
    model: Model, parts: Sequence[Any], batch_size: int, epochs: int
) -> None:
    if epochs:
        check_ends(parts[0], "fine-tuning")
        needs_labels = model.loss is not None and not has_own_step(model)
        if needs_labels and lacks_labels(parts[0]):
            raise DataError(
                "Fine-tuning needs labels, also in a search. Next: give data=(x, y)."
            )
    if parts[0] is not None:
        warn_if_unfit(model)
    for samples in parts:
        if samples is not None:
            check_data(model, samples)
            check_labels(model, samples)
            check_shared(samples, batch_size)


def _in_batches(
    job: Any, size_of: Callable[[Any], int | None], parts: tuple[Any, ...]
) -> tuple[Any, ...]:
    sizes = [None if part is None else size_of(part) for part in parts]
    if isinstance(job, SearchRequest) and any(sizes):
        raise DataError(
            "A search draws single samples, but the model accepts only batches of "
            f"{max(filter(None, sizes))} samples. Next: give steps=."
        )
    return tuple(map(in_fixed_batches, sizes, parts))


def _few_samples(data: Dataset) -> Any:
    """Returns copies of a few inputs, so that the result does not keep `data` alive."""
    if data is None:
        return None
    x = sample_inputs(data, SAMPLES)
    if any(array is None for array in keras.tree.flatten(x)):
        return None
    return keras.tree.map_structure(np.array, x)


def _check_no_search(**arguments: Any) -> None:
    for name, value in arguments.items():
        if value is not None:
            raise ConfigError(
                f"`{name}` is only available in a search. Received: {name}={value!r}. "
                "Next: give target or max_drop, and no steps."
            )


def _warn_without_metric(is_compiled: bool) -> None:  # noqa: FBT001
    lacks = "validation_data has no labels" if is_compiled else _NO_LOSS
    warnings.warn(f"No metric was measured: {lacks}.", KerasMemWarning, stacklevel=3)


def _report(
    before: ModelFigures, after: ModelFigures, outcome: Outcome, data: Dataset
) -> CompressionReport:
    chance = chance_of(outcome.model, data) if before.metrics else None
    return CompressionReport(
        before=before,
        after=after,
        steps=tuple(step.to_json() for step in outcome.steps),
        samples=0 if data is None else sample_count(data) or 0,
        search=outcome.search,
        warning=far_worse(before.metrics, after.metrics, chance),
    )
