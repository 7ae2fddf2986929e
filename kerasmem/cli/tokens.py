"""Text and token ids as data of language models, for calibration and evaluation."""

from argparse import Namespace
from dataclasses import replace
from typing import Any

from kerasmem.cli.steps import Job
from kerasmem.errors import ConfigError


def check_tokens_suffice(options: Namespace, job: Job) -> None:
    """Raise `ConfigError` if the task needs labels."""
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
                "Text and token ids are only used for calibration and for perplexity. "
                f"Received: {name} with --data {options.data}. Next: pass samples with "
                f"labels, or omit {name}."
            )


def are_tokens(options: Namespace) -> bool:
    """Return whether `--data` is a text or token ids."""
    from kerasmem.files.data.tokens import is_token_file

    return bool(options.data) and is_token_file(options.data)


def check_length(options: Namespace) -> None:
    """Raise `ConfigError` if an option for text or token ids is passed without them."""
    for name in ("length", "generate"):
        if getattr(options, name, None) and not are_tokens(options):
            raise ConfigError(
                f"--{name} is only valid for text or token ids. Received: "
                f"--data {options.data}."
            )


def split_tokens(options: Namespace, model: Any) -> tuple[Any, Any]:
    """Return rows for calibration and rows for evaluation, each with the next ids."""
    from kerasmem.cli.evaluation import split_to_judge
    from kerasmem.files.data.tokens import token_samples

    return split_to_judge(token_samples(options.data, model, options.length))


def judged_by_tokens(
    report: Any, models: tuple[Any, Any], rows: Any, batch_size: int
) -> Any:
    """Return the report with the figures of language models before and after."""
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
