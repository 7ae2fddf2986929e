"""Texts and token ids as data: a language model is rounded on and judged by them."""

from argparse import Namespace
from dataclasses import replace
from typing import Any

from kerasmem.cli.steps import Job
from kerasmem.errors import ConfigError


def check_tokens_suffice(options: Namespace, job: Job) -> None:
    """Raise unless what `kerasmem compress` is to do takes no labels.

    Raises:
        ConfigError: if something is to be trained, searched or judged by a metric.
    """
    requests = {
        "--fine-tune-epochs": job.trains,
        "a search": job.steps is None,
        "--max-drop": options.max_drop is not None,
        "--loss": options.loss,
        "--metric": options.metrics,
    }
    for name, value in requests.items():
        if value:
            raise ConfigError(
                "Texts and token ids are what a language model is rounded on and "
                f"judged by, with its perplexity. Received: {name} with --data "
                f"{options.data}. Next: give samples with labels, or leave {name} out."
            )


def check_length(options: Namespace) -> None:
    """Raise `ConfigError` if rows of tokens get a length, and there are none."""
    from kerasmem.files.data.tokens import is_token_file

    if options.length and not (options.data and is_token_file(options.data)):
        raise ConfigError(
            "--length is that of a row of a text or of token ids. Received: "
            f"--data {options.data}."
        )


def split_tokens(options: Namespace, model: Any) -> tuple[Any, Any]:
    """Return rows to round on and rows to judge by, each with the ids behind them.

    Raises:
        DataError: if the file does not fit the model, or is a single row.
    """
    from kerasmem.cli.evaluation import split_to_judge
    from kerasmem.files.data.tokens import token_samples

    return split_to_judge(token_samples(options.data, model, options.length))


def judged_by_tokens(
    report: Any, models: tuple[Any, Any], rows: Any, batch_size: int
) -> Any:
    """Return a report with the figures of language models, before and after.

    Args:
        report: a `CompressionReport`.
        models: the original and the result.
        rows: as `split_tokens` returns them.
        batch_size: most rows in a batch.

    Raises:
        DataError: if the models are no language models.
    """
    from kerasmem.extras.language.metrics import language_figures
    from kerasmem.graph.outputs import without_preprocessor

    with without_preprocessor(models):
        by_name: dict[str, Any] = {"before": models[0], "after": models[1]}
        before, after = language_figures(by_name, rows, batch_size).values()
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
