"""`kerasmem compress`: compresses a saved model."""

from argparse import Namespace
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from kerasmem.cli.command import (
    DATA_OR_TOKENS,
    EXIT_CODES_WITH_LIMIT,
    IMPORT,
    LENGTH,
    LOSS,
    METRIC,
    MODEL,
    OUTPUT,
    REPORT,
    SEED,
    CommandResult,
    at_least,
    batch_of,
    command,
    measure_of,
    not_negative,
    option,
    origin_of,
    progress_console,
    say,
    varied,
)
from kerasmem.cli.steps import STEPS, Job, job_of
from kerasmem.errors import ConfigError, DataError, TargetError
from kerasmem.records.regular import check_output
from kerasmem.stages import OPENING, TRAINING, shown_by

_MEASURE = measure_of("file", "weights", "metrics")


@command(
    "compress",
    "Compress a saved model and measure the cost.",
    MODEL,
    varied(OUTPUT, help="Output file (.keras), or a new folder for a preset."),
    *STEPS,
    "data and fine-tuning",
    varied(
        DATA_OR_TOKENS,
        "Without a test split, the last tenth of arrays is held out if this command "
        "fine-tunes or searches, and always for tokens. Otherwise all samples are "
        "evaluated.",
    ),
    LENGTH,
    LOSS,
    varied(METRIC, "The first one decides --max-drop."),
    option(
        "--fine-tune-epochs",
        type=at_least(0),
        metavar="N",
        help="Number of epochs on DATA after each step that can be trained, such as "
        "pruning (default: 0; 3 with the presets size, latency and balanced; 2 in a "
        "search).",
    ),
    option(
        "--max-drop",
        type=not_negative,
        metavar="X",
        help="Float, at least 0 (default: no limit). Maximum allowed drop of the first "
        "metric (or increase of the loss if there is none). 0.005 is half a point of "
        "accuracy. Nothing is written if the drop is larger. Without steps: search "
        "for the smallest file within X. If no smaller model is certain to stay within "
        "X, the unchanged model is written, with a warning.",
    ),
    batch_of(32),
    SEED,
    "output",
    option(
        "--coding",
        choices=("deflate", "entropy", "stored"),
        help="Coding of the file (default: the coding of the preset, otherwise "
        "deflate). entropy is smaller, but loading always needs `import kerasmem`, "
        "also for float weights. stored can be memory-mapped by km.load_model.",
    ),
    option(
        "--format",
        choices=("kerasmem", "keras"),
        default="kerasmem",
        help="keras stores int8 weights of Dense, EinsumDense and Embedding in "
        "Keras's own format, which loads without kerasmem (default: kerasmem).",
    ),
    _MEASURE,
    REPORT,
    "advanced",
    option(
        "--low-memory",
        action="store_true",
        help="Keep weights on disk and load one at a time. Supports --prune by "
        "magnitude, --quantize with nearest rounding and without awq scales, and "
        "clustering from a recipe; no fine-tuning. With --data, the evaluation also "
        "loads one layer at a time, except for tokens and presets, which then need the "
        "whole model in memory (default: where possible, if MODEL is a folder of a "
        "KerasHub preset or its weights are large for the available memory).",
    ),
    IMPORT,
    exit_codes=EXIT_CODES_WITH_LIMIT,
)
def compress(options: Namespace) -> CommandResult:
    """Compress and save the model, and return figures before and after."""
    from kerasmem.files.data.tokens import are_texts
    from kerasmem.report.progress import StageProgress

    job = job_of(options)
    _check(options, job)
    by_file = _goes_by_file(options, job)
    tokens = None
    with StageProgress(progress_console(), TRAINING) as show, shown_by(show):
        if by_file:
            say(f"compressing {options.model} with weights on disk")
            train, test = _samples(options) if options.data else (None, None)
            result = _compressed(options, job, (None, train, test))
        else:
            show(OPENING)
            inputs = _load(options, job)
            if are_texts(options.data):  # tokens are evaluated after compression
                *model_and_data, rows = inputs
                inputs, tokens = (*model_and_data, None), (model_and_data[0], rows)
            with shown_by(_announcing(show, options.model)):
                result = _searched(options, job, inputs)
        report = result.report
        if tokens is not None:
            models = tokens[0], result.model
            report = _judged_by_tokens(report, models, tokens[1], options)
        # Write the page first, so that a failed command leaves no model. The page stays
        # valid if the model cannot be saved.
        if options.report:
            _write_page(options, report, result.changes)
        if not by_file:  # otherwise already saved
            show("saving")
            result.save(options.output, format=options.format)
    return _outcome(options, report, result.changes)


def _searched(options: Namespace, job: Job, loaded: tuple[Any, Any, Any]) -> Any:
    try:
        return _compressed(options, job, loaded)
    except TargetError as error:
        nearest = error.result
        if options.report and nearest is not None:
            _write_page(options, nearest.report, nearest.changes)
            say(f"No model was written. {options.report} shows the nearest one.")
        raise


def _announcing(show: Any, model: str) -> Any:
    lines = [f"compressing {model} and measuring both models"]

    def announced(name: str, done: int = 0, total: int = 0) -> None:
        if name != OPENING and lines:
            say(lines.pop())
        show(name, done, total)

    return announced


def _compressed(options: Namespace, job: Job, loaded: tuple[Any, Any, Any]) -> Any:
    from kerasmem.compression.compress import compress as compress_model
    from kerasmem.compression.sources import Loaded
    from kerasmem.files.preset import is_preset
    from kerasmem.report.progress import FitProgress

    model, train, test = loaded
    by_file = model is None
    # Layers of a preset may need their weights in memory.
    low_memory = True if options.low_memory or not is_preset(options.model) else None
    return compress_model(
        options.model if by_file else Loaded(model, options.model, options.output),
        job.steps,
        data=train,
        validation_data=test,
        fine_tune_epochs=options.fine_tune_epochs,
        target=job.target,
        time_budget=options.time_budget,
        parallel=options.parallel,
        max_drop=options.max_drop,
        loss=(options.loss or None) if by_file else None,
        metrics=(list(options.metrics) or None) if by_file else None,
        seed=options.seed,
        batch_size=options.batch_size,
        # A progress bar cannot be sent to other processes.
        callbacks=[] if options.parallel or by_file else [FitProgress()],
        coding=options.coding,
        output=options.output if by_file else None,
        low_memory=low_memory if by_file else False,
        measure=[x for x in options.measure if x != "metrics" or test is not None],
    )


def _goes_by_file(options: Namespace, job: Job) -> bool:
    from kerasmem.compression.recipe import as_preset
    from kerasmem.compression.sources import offloads
    from kerasmem.files.data.tokens import are_texts

    steps = None if job.steps is None else as_preset(job.steps).steps
    asks = {
        "--data of tokens" if are_texts(options.data) else "--data": options.data,
        "--fine-tune-epochs": options.fine_tune_epochs or None,
        "--format keras": None if options.format == "kerasmem" else True,
        "--measure latency": True if "latency" in options.measure else None,
    }
    low_memory = options.low_memory or None
    return offloads(low_memory, options.model, options.output, steps, asks)


def _check(options: Namespace, job: Job) -> None:
    from kerasmem.compression.presets import check_output_of
    from kerasmem.files.data.tokens import check_are_texts, check_texts_suffice

    check_output_of(options.model, options.output, options.coding)
    if options.format == "keras" and options.coding == "entropy":
        raise ConfigError(
            "Keras cannot read entropy coding. Received: --format keras --coding "
            "entropy. Next: give --coding deflate."
        )
    if options.report:
        check_output(options.report, ".html")
    wants_data = {
        "--target": options.targets,
        "--fine-tune-epochs": options.fine_tune_epochs,
        "--max-drop": options.max_drop is not None,
        "--loss": options.loss,
        "--metric": options.metrics,
        "--measure metrics": _measures_metrics(options),
    }
    for name, is_set in wants_data.items():
        if is_set and not options.data:
            raise ConfigError(f"{name} needs data. Next: add --data.")
    requests = {
        "--fine-tune-epochs": job.trains,
        "a search": job.steps is None,
        "--max-drop": options.max_drop is not None,
        "--loss": options.loss,
        "--metric": options.metrics,
    }
    check_are_texts(options.data, {"--length": options.length})
    check_texts_suffice(options.data, requests)


def _measures_metrics(options: Namespace) -> bool:
    is_default = options.measure is _MEASURE.settings["default"]
    return not is_default and "metrics" in options.measure


def _needs_labels(options: Namespace) -> bool:
    judges = options.max_drop is not None or options.loss or options.metrics
    return bool(judges) or _measures_metrics(options)


def _samples(options: Namespace) -> tuple[Any, Any]:
    """Return calibration samples, and validation samples if there are labels.

    No trial evaluation as in `check_judging`, because the model is not loaded here.
    """
    from kerasmem.cli.evaluation import check_names, has_labels
    from kerasmem.files.data import load_data

    check_names(options.loss, options.metrics)
    splits = load_data(options.data)
    test = splits.train if splits.test is None else splits.test
    if has_labels(test):
        return splits.train, test
    if _needs_labels(options):
        raise DataError(
            "The data has no labels, which an evaluation needs. Next: add the array y, "
            "or y_train and y_test."
        )
    say("The data has no labels: no metric is measured.")
    return splits.train, None


def _load(options: Namespace, job: Job) -> tuple[Any, Any, Any]:
    from kerasmem.cli.evaluation import (
        check_judging,
        compile_for,
        has_labels,
        split_to_judge,
    )
    from kerasmem.files import load_model
    from kerasmem.files.data import check_data, load_data
    from kerasmem.files.data.tokens import are_texts, token_samples

    model = load_model(options.model)
    if not options.data:
        return model, None, None
    if are_texts(options.data):
        tokens = token_samples(options.data, model, options.length)
        return model, *split_to_judge(tokens)
    splits = load_data(options.data)
    train, test = splits.train, splits.test
    compile_for(model, options.loss, options.metrics)
    judging = [part for part in (test, train) if part is not None]
    if not (job.trains or _needs_labels(options) or any(map(has_labels, judging))):
        say("The data has no labels: no metric is measured.")
        check_data(model, train)
        return model, train, None
    if job.trains or test is None:
        check_judging(model, train, options.batch_size)
    if test is None and job.trains:
        train, test = split_to_judge(train)
    test = train if test is None else test
    check_judging(model, test, options.batch_size)
    return model, train, test


def _judged_by_tokens(
    report: Any, models: tuple[Any, Any], rows: Any, options: Namespace
) -> Any:
    """Return the report with the figures of language models before and after."""
    from kerasmem.extras.language.metrics import language_figures
    from kerasmem.graph.outputs import without_preprocessor

    with without_preprocessor(models):
        by_name: dict[str, Any] = {"before": models[0], "after": models[1]}
        before, after = language_figures(
            by_name, rows, options.batch_size, options.measure
        ).values()
    sizes = ("file_bytes", "optimizer_file_bytes")
    old, new = (
        {name: getattr(each, name) for name in sizes}
        for each in (report.before, report.after)
    )
    return replace(
        report,
        before=replace(before, **old),
        after=replace(after, **new),
        samples=len(rows[1]),
    )


def _write_page(options: Namespace, report: Any, changes: Any) -> None:
    from kerasmem.report.compression import Page, write_page

    page = Page(
        title=f"{Path(options.model).name}, compressed",
        models=report.by_name(),
        changes=changes,
        origin=origin_of(options),
        search=report.search,
        warning=report.warning or "",
    )
    write_page(options.report, page)


def _outcome(options: Namespace, report: Any, changes: Any) -> CommandResult:
    from kerasmem.cli.evaluation import file_sentence
    from kerasmem.records.comparison import comparison_table
    from kerasmem.records.weights import left_alone_table, noise_table, worst_first
    from kerasmem.report.compression import search_table

    data = {
        "model": options.model,
        "output": str(options.output),
        "warning": report.warning,
        "file_ratio": report.file_ratio,
        "weight_ratio": report.weight_ratio,
        "report": asdict(report),
        "changes": [asdict(change) for change in changes],
    }
    changed_weights = {change.weight for change in changes if change.changed}
    left_alone = {
        change.weight for change in changes if change.before_bytes
    } - changed_weights
    before, after = report.before, report.after
    file = file_sentence("Input file", before.file_bytes, before.optimizer_file_bytes)
    summary = (
        f"weights changed: {len(changed_weights)}, unchanged: {len(left_alone)} (for "
        f"each weight: --json, --report). {file}"
    )
    table = comparison_table(report.by_name(), str(options.output))
    noise = (noise_table(changes),) if worst_first(changes) else ()
    trials = (search_table(report.search),) if report.search else ()
    why = (left_alone_table(changes),) if left_alone else ()
    first = [report.warning] if report.warning else []
    if report.file_ratio and report.file_ratio < 1:
        without = " without its optimizer state" * bool(before.optimizer_file_bytes)
        first.append(
            f"{options.output} is larger than {options.model}{without}: "
            f"{after.model_file_bytes:,} bytes instead of "
            f"{before.model_file_bytes:,}."
        )
    return CommandResult(data, (*first, *trials, table, *noise, *why, summary))
