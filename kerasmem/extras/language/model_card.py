"""Model card in Hugging Face format: the compression steps and their cost."""

import importlib.metadata
from collections.abc import Iterator, Sequence

import keras
import yaml

from kerasmem.records import CompressionReport, WeightChange
from kerasmem.records.comparison import models_table

_TAGS = {
    "prune": "pruning",
    "prune_channels": "pruning",
    "quantize": "quantization",
    "distill": "knowledge-distillation",
}


def model_card(
    name: str,
    report: CompressionReport,
    changes: Sequence[WeightChange],
    metadata: dict[str, str],
) -> str:
    """Return the card as Markdown with YAML metadata."""
    techniques = [str(step.get("technique")) for step in report.steps]
    tags = dict.fromkeys(["compression", *(_TAGS.get(t, t) for t in techniques)])
    head = {"library_name": "keras", "tags": list(tags), **metadata}
    parts = [
        f"---\n{yaml.safe_dump(head, sort_keys=False, allow_unicode=True)}---",
        f"# {_plain(name)}",
        "A Keras model compressed with kerasmem "
        f"{importlib.metadata.version('kerasmem')} (Keras {keras.__version__}, "
        f"{keras.backend.backend()} backend).",
        *([f"> **Warning**: {_plain(report.warning)}"] if report.warning else []),
        "## Compression steps",
        "\n".join(_steps(report, changes)),
        "## Cost",
        "\n".join(_figures(report)),
        _judged(report),
        "## Usage",
        "```python\nimport keras\n\nimport kerasmem  # registers its layers\n\n"
        'model = keras.models.load_model("model.keras")\n```',
    ]
    return "\n\n".join(parts) + "\n"


def _steps(report: CompressionReport, changes: Sequence[WeightChange]) -> Iterator[str]:
    for number, step in enumerate(report.steps, 1):
        config = ", ".join(
            f"`{key}={value!r}`"
            for key, value in step.items()
            if key != "technique" and value not in (None, (), [])
        )
        yield f"{number}. **{step.get('technique')}**{': ' * bool(config)}{config}"
    if not report.steps:
        yield "Only the coding of the file changed. All weights are the same."
    count = len({change.weight for change in changes if change.changed})
    others = len({change.weight for change in changes}) - count
    yield f"\nChanged weights: {count:,}. Unchanged weights: {others:,}."


def _figures(report: CompressionReport) -> Iterator[str]:
    yield "| figure | before | after | |\n|---|---|---|---|"
    for label, before, after, _, source in models_table(report.by_name()).rows:
        cells = map(_plain, (label, before, after, source))
        yield f"| {' | '.join(cells)} |"


def _judged(report: CompressionReport) -> str:
    if not report.samples:
        return "The accuracy is unknown, because no validation data was used."
    return f"Loss and metrics are measured on {report.samples:,} validation samples."


def _plain(text: str) -> str:
    return text.replace("|", "\\|").replace("<", "&lt;").replace("\n", " ")
