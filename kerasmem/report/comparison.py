"""Models side by side, as rows of text that a table or a page can show."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from kerasmem.records import CompressionReport, ModelFigures
from kerasmem.report.page.table import MISSING, Table
from kerasmem.units import format_bytes, format_ms


@dataclass(frozen=True)
class Cell:
    """One figure of one model.

    Args:
        value: the figure as text, `MISSING` if it is not to be had.
        against_first: how it stands to the first model's, `""` for the first model.
    """

    value: str
    against_first: str = ""


@dataclass(frozen=True)
class Row:
    """One figure of all models.

    Args:
        label: what the figure is.
        source: `"measured"`, `"estimated"` or `"counted"`.
        cells: one per model, the first model first.
    """

    label: str
    source: str
    cells: tuple[Cell, ...]


def before_and_after(report: CompressionReport) -> dict[str, ModelFigures]:
    """Return the two models of a report under the names that tables show."""
    return {"before": report.before, "after": report.after}


def comparison_rows(models: Mapping[str, ModelFigures]) -> list[Row]:
    """Return one row per figure that at least one of the models has.

    Sizes and times stand to the first model's as `"3.9x"`, which is 3.9 times less;
    metrics as their difference.

    Args:
        models: figures by the model's name, the one to compare with first.
    """
    figures = list(models.values())
    rows = [
        _size("file", "measured", [f.file_bytes for f in figures]),
        _size("weights in RAM", "counted", [f.weight_bytes for f in figures]),
        _count("parameters", [f.parameters for f in figures]),
        _count("nonzero parameters", [f.nonzero for f in figures]),
        _size(
            "activation peak, 1 sample",
            "estimated",
            [f.activation_peak_bytes for f in figures],
        ),
        _latency(figures),
    ]
    names = dict.fromkeys(name for f in figures for name in f.metrics)
    rows += [_metric(name, [f.metrics.get(name) for f in figures]) for name in names]
    return [row for row in rows if any(cell.value != MISSING for cell in row.cells)]


def models_table(models: Mapping[str, ModelFigures]) -> Table:
    """Return the figures of models side by side, each against the first."""
    first, *others = models
    against = [text for name in others for text in (name, f"vs {first}")]
    rows = [
        (
            row.label,
            _two_lines(row.cells[0].value),
            *(
                text
                for cell in row.cells[1:]
                for text in (_two_lines(cell.value), cell.against_first)
            ),
            row.source,
        )
        for row in comparison_rows(models)
    ]
    return Table(
        "The models side by side",
        ("figure", first, *against, "source"),
        tuple(rows),
        note=(
            f"Sizes and times: how many times less than under “{first}”. Metrics: the "
            "difference."
        ),
        last_texts=1,
        strong=tuple(range(3, 2 + len(against), 2)),
        sortable=False,
    )


def _size(label: str, source: str, values: Sequence[int | None]) -> Row:
    texts = [MISSING if size is None else format_bytes(size) for size in values]
    return _row(label, source, texts, _times_less(values))


def _count(label: str, values: Sequence[int]) -> Row:
    return _row(label, "counted", [f"{n:,}" for n in values], _times_less(values))


def _latency(figures: Sequence[ModelFigures]) -> Row:
    batch = next((f.latency_batch_size for f in figures if f.latency_batch_size), None)
    label = f"latency, batch of {batch}"
    if any(f.latency_low_ms is not None for f in figures):
        label += " (eight in ten)"
    first, ratios = figures[0], _times_less([f.latency_ms for f in figures])
    against = [
        "no clear difference"
        if ratio and first.is_clearly_faster(f) is f.is_clearly_faster(first) is False
        else ratio
        for f, ratio in zip(figures, ratios, strict=True)
    ]
    return _row(label, "measured", [_time(f) for f in figures], against)


def _time(figures: ModelFigures) -> str:
    """Return a median and what eight in ten times are between."""
    if figures.latency_ms is None:
        return MISSING
    low, high = figures.latency_low_ms, figures.latency_high_ms
    if low is None or high is None:
        return format_ms(figures.latency_ms)
    return f"{format_ms(figures.latency_ms)} ({format_ms(low)} to {format_ms(high)})"


def _metric(label: str, values: Sequence[float | None]) -> Row:
    texts = [MISSING if value is None else f"{value:.4f}" for value in values]
    first = values[0]
    differences = [
        "" if first is None or value is None else f"{value - first:+.4f}"
        for value in values
    ]
    return _row(label, "measured", texts, differences)


def _times_less(values: Sequence[float | None]) -> list[str]:
    """Return how many times less than the first each value is, `""` if unknown."""
    first = values[0]
    ratios = [first / value if first and value else None for value in values]
    return ["" if r is None else f"{r:.{2 if r < 9.995 else 1}f}x" for r in ratios]


def _row(label: str, source: str, texts: list[str], against_first: list[str]) -> Row:
    pairs = zip(texts, ["", *against_first[1:]], strict=True)
    return Row(label, source, tuple(Cell(*pair) for pair in pairs))


def _two_lines(figure: str) -> str:
    """Return a figure with the range it lies in, if it has one, below it."""
    return figure.replace(" (", "\n(")
