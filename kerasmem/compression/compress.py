"""The one verb: a model in, a smaller model and its report out."""

import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Executor
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import keras
import numpy as np

from kerasmem.backends.seeding import seeded
from kerasmem.checks import OneOf, Whole, invalid
from kerasmem.compression.chain import Chain, Outcome
from kerasmem.compression.judge import (
    chance_of,
    check_max_drop,
    far_worse,
    lacks_labels,
)
from kerasmem.compression.measure import (
    FIGURES,
    FILE,
    LATENCY,
    METRICS,
    WEIGHTS,
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
from kerasmem.files.contents import FileSize
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
from kerasmem.files.save import Coding
from kerasmem.files.weights import CODINGS
from kerasmem.graph.layers import has_own_step
from kerasmem.graph.outputs import warn_if_unfit
from kerasmem.records import CompressionReport
from kerasmem.stages import OPENING, stage
from kerasmem.types import Dataset, Model

BATCH_SIZE = 32

_TIMING_SECONDS = 2.0
"""For both models together."""

_NO_LOSS = "the model has no loss; give loss= (--loss on the command line)"


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
    checkpoint_dir: str | Path | None = None,
    time_budget: float | None = None,
    parallel: str | Executor | None = None,
    verbose: int = 1,
    output: str | Path | None = None,
    low_memory: bool | None = None,
    measure: str | Sequence[str] = (FILE, WEIGHTS, METRICS),
) -> CompressionResult:
    """Compress a model; return it with its costs and metrics before and after.

    The techniques are applied in order to a copy; what is handed in is not touched.
    Without `steps` they are searched for: the model that meets `target` and loses
    least, or without a target the one of the smallest file, within `max_drop`.

    Args:
        model_or_path: a built `keras.Model`, or the path of a file, as for
            `km.load_model`.
        steps: one technique or several; or the path of a recipe: a JSON or YAML file
            that lists them, see `kerasmem.compression.recipe`; or the name of a preset,
            `"size"`, `"latency"`, `"balanced"` or `"lossless"`, see
            `kerasmem.compression.recipe`; None for a search.
        data: samples to fine-tune on: `(x, y)`, `(x, y, sample_weight)`, a
            `tf.data.Dataset`, a `keras.utils.PyDataset`. A search takes arrays, and
            holds a fifth of the samples out to judge by what it tries; at least 100.
        validation_data: samples to judge by; without them no metric is measured. A
            search does not see them before its choice is made.
        fine_tune_epochs: epochs of training on `data` after every technique that
            leaves the model trainable, with the model's own optimizer settings, loss
            and metrics; its optimizer starts anew for each technique. What a technique
            removed stays removed. None for what a preset has, 2 in a search, else 0.
        target: in place of steps: the most that the model may cost, as numbers by name:
            `"file_bytes"`, `"weight_bytes"`, `"activation_bytes"` of one sample,
            `"latency_ms"` of a batch, `"flops"` of one sample; sizes also as text.
        max_drop: most that the first metric may get worse, as a difference (0.005 is
            half a point of accuracy), the first in `compile`, the loss if there is
            none; needs `validation_data`. Of what a search tries it must hold by 2.5
            standard errors.
        loss: loss to use in place of the model's own; a name may have arguments, as
            in `"sparse_categorical_crossentropy(from_logits=True)"`.
        metrics: metrics to use in place of the model's own.
        custom_objects: the user's own layers and functions by name, for a path.
        seed: makes fine-tuning and a search repeatable, all but a search for
            `"latency_ms"` or with a time budget.
        batch_size: samples per batch, from 1, where `data` is not batched already.
        callbacks: Keras callbacks for the fine-tuning.
        coding: of the file, as for `km.save_model`: `"entropy"` is smaller, and Keras
            opens it after `import kerasmem`. None for what a preset has, else
            `"deflate"`.
        checkpoint_dir: a folder that keeps the model after every technique: a run that
            was killed goes on there when it is called again with the same arguments.
            With a seed it ends with the same weights, where the training itself can be
            repeated: not with a dataset that shuffles by itself, or callbacks that
            remember earlier trainings. Not for a search.
        time_budget: seconds, above 0, after which a search returns the best that it has
            found.
        parallel: where a search tries several things at a time: `"ray"` for the Ray
            cluster that one is connected to, or one on this machine (`pip install
            kerasmem[ray]`); a `concurrent.futures.Executor` of processes that start
            anew; `"isolated"` for one after the other, each family in a process of its
            own, whose memory goes back whole. A seed gives the same result as without.
            Callbacks are copied.
        verbose: 0 for silence, 1 for a line on stderr about each trial of a search.
        output: a file to write, which ends in `.keras`; of a preset of KerasHub also a
            new folder, for a preset; None for none.
        low_memory: True to leave the weights in files: one weight is in memory at a
            time, with up to two copies of it, and the `model` of the result is opened
            when it is asked for. For a path and an output, and for `Prune` by
            magnitude, `Cluster`, and `Quantize` but with adaptive rounding. With
            samples the model runs layer by layer. None to do so where it is possible
            and the weights take more than a sixth of the available memory. False never
            to. A preset becomes a preset in this way wherever it can, without samples.
        measure: what the report tells of both models: some of `"file"`, `"weights"`,
            `"metrics"` (with `validation_data`), `"activations"` and `"latency"`.
            `max_drop` and `target` always measure what they need.

    Returns:
        The `km.CompressionResult`: the compressed model, compiled as the original was;
        a report of both models; and the change of every weight.

    Raises:
        ConfigError: if the arguments do not fit together.
        DataError: if the data does not fit the model.
        ModelError: if a technique finds nothing to do, or training left NaN or infinity
            in the model.
        ModelFileError: if the file cannot be loaded.
        OutputError: if `output` or a checkpoint cannot be written.
        TargetError: if the metric drops by more than `max_drop`, or a search does not
            reach `target`; the `result` of the error is then the nearest.

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
        _check_no_folder(checkpoint_dir)
        job = SearchRequest.of(target, max_drop, time_budget, verbose, parallel)
    else:
        _check_no_search(target=target, time_budget=time_budget, parallel=parallel)
        job = Chain(steps, max_drop, checkpoint_dir, batch_size)
    epochs = job.epochs if fine_tune_epochs is None else fine_tune_epochs
    check_output_of(model_or_path, output, coding)
    coding = coding or job.coding
    Whole(0).check("compress", "fine_tune_epochs", epochs)
    job.check(data, validation_data, epochs)
    check_max_drop(max_drop, validation_data)
    CODINGS.check("compress", "coding", coding)
    check_ends(validation_data, "judging")
    figure_names = (*_figures(measure), *job.figures)
    asks = {"data": data, "validation_data": validation_data, "max_drop": max_drop}
    asks |= {"loss": loss, "metrics": metrics, "checkpoint_dir": checkpoint_dir}
    asks |= {"fine_tune_epochs": epochs or None, "callbacks": callbacks or None}
    asks["measure='latency'"] = True if LATENCY in figure_names else None
    techniques = getattr(job, "steps", None)
    stage(OPENING)
    source = source_of(
        model_or_path, output, custom_objects, low_memory, techniques, asks
    )
    writer = source.writer(output)
    with ExitStack() as scope, seeded(seed), source.opened() as original:
        if original is not model_or_path:
            compile_anew(original, loss, metrics)
        _check_loss(original.name, original.compiled, epochs)
        _check_samples(original, (data, validation_data), batch_size, epochs)
        size_of = partial(needed_batch, original, batch_size=batch_size)
        data, validation_data = _in_batches(job, size_of, (data, validation_data))
        fit = {} if data is None else fit_arguments(data, batch_size)
        # Before the work: data that cannot be read again would take it along.
        few = _few_samples(data if validation_data is None else validation_data)
        fit |= {"callbacks": list(callbacks or ()), "verbose": 0}
        context = Context(data, fit, epochs, seed, custom_objects)
        with _labels_named(bool(epochs) and lacks_labels(data)):
            outcome = job.run(original, context, coding, validation_data)
        stage("writing the file")
        # Left last: the output may take the place of the file that is read.
        place = scope.enter_context(writer.place())
        sizes: list[FileSize | None] = [None, None]
        if FILE in figure_names:
            sizes[0] = source.size()
        if FILE in figure_names or output is not None:
            sizes[1] = writer.write(outcome.model, place, coding)
        stage("measuring both models")
        judging = (validation_data, batch_size)
        with _data_errors():
            report = _report(original, outcome, judging, sizes, figure_names)
        changes = tuple(outcome.changes)
        result = CompressionResult(outcome.model, report, changes, coding, few)
        job.judge(result)  # before a file takes the place of another
    warn_if_left_float(changes)
    source.leave(result, output)
    return result


def _figures(measure: Any) -> tuple[str, ...]:
    """Return what is to be measured.

    Raises:
        ConfigError: if it is none of `FIGURES`.
    """
    names = (measure,) if isinstance(measure, str) else measure
    if not isinstance(names, Sequence):
        raise invalid("compress", "measure", measure, "some of " + ", ".join(FIGURES))
    for name in names:
        OneOf(FIGURES).check("compress", "measure", name)
    return tuple(names)


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
            "data=(x, y) if the model's loss or `train_step` takes labels."
        ) from error


def _check_loss(name: str, is_compiled: bool, epochs: int) -> None:  # noqa: FBT001
    if epochs and not is_compiled:
        raise ConfigError(
            f"The model {name!r} has no loss, so it cannot be fine-tuned. Give loss= "
            "(--loss on the command line)."
        )


def _check_samples(
    model: Model, parts: Sequence[Any], batch_size: int, epochs: int
) -> None:
    if epochs:
        check_ends(parts[0], "fine-tuning")
        needs_labels = model.loss is not None and not has_own_step(model)
        if needs_labels and lacks_labels(parts[0]):
            raise DataError("Fine-tuning needs labels: give data=(x, y).")
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
            "A search draws single samples, and the model takes batches of "
            f"{max(filter(None, sizes))} samples only. Next: give steps=."
        )
    return tuple(map(in_fixed_batches, sizes, parts))


def _few_samples(data: Dataset) -> Any:
    """Return inputs to compare an exported file on, without holding the data by them.

    None without data, or where an optional input is left out.
    """
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
                f"A search takes {name}, and with steps there is nothing to search "
                f"for: give steps, or target or max_drop. Received: {name}={value!r}."
            )


def _check_no_folder(checkpoint_dir: Any) -> None:
    if checkpoint_dir is not None:
        raise ConfigError(
            "A search keeps no checkpoints; the steps that it finds do, in a run of "
            "their own. Next: leave out checkpoint_dir (--checkpoint-dir on the "
            f"command line). Received: checkpoint_dir={str(checkpoint_dir)!r}."
        )


def _report(
    original: Model,
    outcome: Outcome,
    judged: tuple[Any, int],
    sizes: Sequence[FileSize | None],
    measured: Sequence[str],
) -> CompressionReport:
    data, batch_size = judged
    models = [original, outcome.model]
    before, after = (
        figures(model, data, batch_size, size if FILE in measured else None, measured)
        for model, size in zip(models, sizes, strict=True)
    )
    if data is not None and METRICS in measured and not before.metrics:
        lacks = "validation_data has no labels" if original.compiled else _NO_LOSS
        warnings.warn(
            f"No metric was measured: {lacks}.", KerasMemWarning, stacklevel=3
        )
    if LATENCY in measured:
        times = latencies_or_warning(models, data, batch_size, _TIMING_SECONDS)
        before, after = replace(before, **times[0]), replace(after, **times[1])
    chance = chance_of(original, data) if before.metrics else None
    return CompressionReport(
        before=before,
        after=after,
        steps=tuple(step.to_json() for step in outcome.steps),
        samples=0 if data is None else sample_count(data) or 0,
        search=outcome.search,
        warning=far_worse(before.metrics, after.metrics, chance),
    )
