"""`kerasmem evaluate` and `compare`: measure one model or two."""

from argparse import Namespace
from collections.abc import Mapping
from dataclasses import asdict, replace
from typing import Any

from kerasmem.cli.command import (
    DATA_OR_TOKENS,
    IMPORT,
    LENGTH,
    LOSS,
    METRIC,
    MODEL,
    CommandResult,
    at_least,
    batch_of,
    command,
    measure_of,
    option,
    progress_console,
    say,
    varied,
)
from kerasmem.errors import ConfigError
from kerasmem.stages import OPENING

_DATA = varied(
    DATA_OR_TOKENS,
    "The test split is measured if there is one, otherwise all samples.",
    required=True,
)
_GENERATE = option(
    "--generate",
    type=at_least(1),
    metavar="TOKENS",
    help="Also time the generation of new tokens, with a KerasHub CausalLM. The prompt "
    "is the first row of the data without its last TOKENS tokens.",
)
_MEASURE = measure_of("file", "weights", "metrics", "activations", "latency")
_OPTIONS = (_DATA, LENGTH, _GENERATE, LOSS, METRIC, batch_of(32), _MEASURE, IMPORT)


@command(
    "evaluate",
    "Measure a model: metrics, latency, memory and file. Language models: perplexity.",
    MODEL,
    *_OPTIONS,
)
def evaluate(options: Namespace) -> CommandResult:
    """Measure the model on the test split, or on all data if there is none."""
    from kerasmem.records.comparison import comparison_table

    figures, result = _judged(options, [options.model])
    result = {"model": options.model, **result}
    result["figures"] = asdict(figures[options.model])
    return CommandResult(result, (comparison_table(figures),))


@command(
    "compare",
    "Measure two models on the same samples. For language models also KL divergence.",
    MODEL,
    option("other", metavar="OTHER", help="Second model, such as a quantized version."),
    *_OPTIONS,
)
def compare(options: Namespace) -> CommandResult:
    """Measure two models on the same samples. The first is the reference."""
    from kerasmem.records.comparison import comparison_table

    if options.model == options.other:
        raise ConfigError(
            f"Expected two different models. Received: {options.model!r} twice."
        )
    figures, result = _judged(options, [options.model, options.other])
    result = {"model": options.model, "other": options.other, **result}
    result["figures"] = [asdict(each) for each in figures.values()]
    return CommandResult(result, (comparison_table(figures),))


def _judged(
    options: Namespace, paths: list[str]
) -> tuple[Mapping[str, Any], dict[str, Any]]:
    from kerasmem.cli.evaluation import of_its_file
    from kerasmem.compression.measure import FILE, check_figures
    from kerasmem.files import load_model
    from kerasmem.files.data.tokens import check_are_texts, is_token_file
    from kerasmem.report.progress import StageProgress

    names = {"--length": options.length, "--generate": options.generate}
    check_are_texts(options.data, names)
    figure_names = check_figures(options.measure, options.command.name)
    judge = _on_tokens if is_token_file(options.data) else _on_samples
    with StageProgress(progress_console()) as show:
        show(OPENING)
        models = {path: load_model(path) for path in paths}
        show("measuring")
        figures, about = judge(options, models)
    if FILE in figure_names:  # of the input file, not of a file saved by kerasmem
        figures = {path: of_its_file(each, path) for path, each in figures.items()}
    return figures, {"data": options.data, **about}


def _on_samples(
    options: Namespace, models: Mapping[str, Any]
) -> tuple[Mapping[str, Any], dict[str, Any]]:
    from kerasmem.cli.evaluation import check_judging, compile_for
    from kerasmem.compression.measure import LATENCY, figures, latencies
    from kerasmem.files.data import load_data, sample_count, warn_if_not_finite

    splits = load_data(options.data)
    data = splits.train if splits.test is None else splits.test
    for model in models.values():
        compile_for(model, options.loss, options.metrics)
        check_judging(model, data, options.batch_size)
    warn_if_not_finite(data)
    say(f"measuring {' and '.join(models)}")
    size = options.batch_size
    by_path = {
        path: figures(model, data, size, None, options.measure)
        for path, model in models.items()
    }
    if LATENCY in options.measure:
        times = latencies(list(models.values()), data, size)
        pairs = zip(by_path.items(), times, strict=True)
        by_path = {path: replace(own, **latency) for (path, own), latency in pairs}
    split = "all" if splits.test is None else "test"
    return by_path, {"split": split, "samples": sample_count(data)}


def _on_tokens(
    options: Namespace, models: dict[str, Any]
) -> tuple[Mapping[str, Any], dict[str, Any]]:
    from kerasmem.extras.language.generation import (
        check_generates,
        generation_figures,
    )
    from kerasmem.extras.language.metrics import language_figures
    from kerasmem.files.data.tokens import check_known, token_samples
    from kerasmem.graph.outputs import without_preprocessor

    if options.loss or options.metrics:
        raise ConfigError(
            "A language model is evaluated by its perplexity on tokens. Received: "
            f"--loss or --metric with --data {options.data}."
        )
    first = next(iter(models.values()))
    data = token_samples(options.data, first, options.length)
    for model in models.values():
        check_known(data[1], model, str(options.data))
    if options.generate:
        check_generates(models, data, options.generate)
    say(f"measuring {' and '.join(models)}")
    with without_preprocessor([*models.values()]):
        by_path = language_figures(models, data, options.batch_size, options.measure)
        if options.generate:
            times = generation_figures(models, data, options.generate)
            pairs = zip(by_path.items(), times, strict=True)
            by_path = {path: replace(old, **own) for (path, old), own in pairs}
    return by_path, {"split": "all", "tokens": int(data[2].sum())}
