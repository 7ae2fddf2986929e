"""A model card in the form of Hugging Face: what was done to a model, what it cost."""

import importlib.metadata
from collections.abc import Iterator, Sequence

import keras
import yaml

from kerasmem.records import CompressionReport, WeightChange
from kerasmem.units import format_bytes, format_ms

_TAGS = {
    "prune": "pruning",
    "prune_channels": "pruning",
    "quantize": "quantization",
    "distill": "knowledge-distillation",
}
_MISSING = "-"


def model_card(
    name: str,
    report: CompressionReport,
    changes: Sequence[WeightChange],
    metadata: dict[str, str],
) -> str:
    """Return the card as Markdown, with its metadata in YAML before it.

    Args:
        name: of the model.
        report: figures of the original and of the result.
        changes: every weight after every technique.
        metadata: further entries of the YAML, such as `license`.
    """
    techniques = [str(step.get("technique")) for step in report.steps]
    tags = dict.fromkeys(["compression", *(_TAGS.get(t, t) for t in techniques)])
    head = {"library_name": "keras", "tags": list(tags), **metadata}
    parts = [
        f"---\n{yaml.safe_dump(head, sort_keys=False, allow_unicode=True)}---",
        f"# {_plain(name)}",
        "A Keras model, made smaller with kerasmem "
        f"{importlib.metadata.version('kerasmem')} (Keras {keras.__version__}, "
        f"{keras.backend.backend()} backend).",
        *([f"> **Warning**: {_plain(report.warning)}"] if report.warning else []),
        "## What was done",
        "\n".join(_steps(report, changes)),
        "## What it costs",
        "\n".join(_figures(report)),
        _judged(report),
        "## How to use it",
        "```python\nimport keras\n\nimport kerasmem  # its int8 and coded weights\n\n"
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
        yield "The weights were written in another coding, and are the same."
    changed = {change.weight for change in changes if change.changed}
    untouched = {change.weight for change in changes} - changed
    yield f"\nWeights changed: {len(changed):,}; as they were: {len(untouched):,}."


def _figures(report: CompressionReport) -> Iterator[str]:
    before, after = report.before, report.after
    yield "| figure | before | after | |\n|---|---|---|---|"
    states = before.optimizer_file_bytes, after.optimizer_file_bytes
    label = "file without optimizer state" if any(states) else "file"
    state = ("optimizer state in the file", *states, "measured")
    for name, old, new, source in (
        (label, before.model_file_bytes, after.model_file_bytes, "measured"),
        *([state] if any(states) else []),
        ("weights in RAM", before.weight_bytes, after.weight_bytes, "counted"),
        (
            "activation peak, 1 sample",
            before.activation_peak_bytes,
            after.activation_peak_bytes,
            "estimated",
        ),
    ):
        yield _row(name, _bytes(old), _bytes(new), source)
    yield _row("parameters", f"{before.parameters:,}", f"{after.parameters:,}")
    yield _row("nonzero parameters", f"{before.nonzero:,}", f"{after.nonzero:,}")
    if before.latency_ms is not None and after.latency_ms is not None:
        times = format_ms(before.latency_ms), format_ms(after.latency_ms)
        batch = f"latency, batch of {after.latency_batch_size}"
        yield _row(batch, *times, "measured on the machine that made it")
    for name, value in after.metrics.items():
        old = before.metrics.get(name)
        earlier = _MISSING if old is None else f"{old:.4f}"
        yield _row(name, earlier, f"{value:.4f}", "measured")


def _judged(report: CompressionReport) -> str:
    if not report.samples:
        return "No data was there to judge it by: its accuracy is unknown."
    return f"Loss and metrics are of {report.samples:,} validation samples."


def _bytes(size: int | None) -> str:
    return _MISSING if size is None else format_bytes(size)


def _row(name: str, old: str, new: str, source: str = "counted") -> str:
    return f"| {_plain(name)} | {old} | {new} | {source} |"


def _plain(text: str) -> str:
    """Return text that can neither end a cell nor begin a tag."""
    return text.replace("|", "\\|").replace("<", "&lt;").replace("\n", " ")
