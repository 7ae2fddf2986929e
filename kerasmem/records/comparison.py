"""Tables that compare the figures of several models."""

from collections.abc import Iterator, Mapping, Sequence

import rich.table

from kerasmem.records.figures import ModelFigures
from kerasmem.records.table import MISSING, Table, bytes_or_missing, terminal_table
from kerasmem.units import format_bytes, format_ms


def comparison_table(
    models: Mapping[str, ModelFigures], title: str = ""
) -> rich.table.Table:
    """Returns a comparison of models for the terminal, the reference first."""
    return terminal_table(models_table(models), title)


def models_table(models: Mapping[str, ModelFigures]) -> Table:
    """Returns a table with one row per figure that any of the models has.

    A row contains the figure of each model and its relation to the first model. For
    sizes and times, `"3.9x"` means 3.9 times smaller. For metrics, the relation is the
    difference. The last column is the source: measured, estimated or counted.
    """
    figures = list(models.values())
    rows = [
        *_file_rows(figures),
        _size("weights in RAM", [f.weight_bytes for f in figures], "counted"),
        _count("parameters", [f.parameters for f in figures]),
        _count("nonzero parameters", [f.nonzero for f in figures]),
        _size(
            "activation peak, 1 sample",
            [f.activation_peak_bytes for f in figures],
            "estimated",
        ),
        _latency(figures),
        _rate("tokens a second", [f.tokens_per_second for f in figures]),
        _rate("generated tokens a second", [f.generated_per_second for f in figures]),
        _duration("time to the first token", [f.first_token_ms for f in figures]),
        _size("weights read for a token", [f.token_bytes for f in figures], "counted"),
    ]
    names = dict.fromkeys(name for f in figures for name in f.metrics)
    counts = [f"{f.tokens:,}" for f in figures if f.tokens]
    labels = {"perplexity": f"perplexity ({counts[0]} tokens)"} if counts else {}
    rows += [
        _metric(labels.get(name, name), [f.metrics.get(name) for f in figures])
        for name in names
    ]
    first, *others = models
    against = [text for name in others for text in (name, f"vs {first}")]
    return Table(
        "The models side by side",
        ("figure", first, *against, "source"),
        tuple(row for row in rows if any(text != MISSING for text in _figures(row))),
        note=(
            f"Sizes and times: factor of reduction from “{first}”. Metrics: difference."
            f"{_RATES if any(f.tokens_per_second for f in figures) else ''}"
        ),
        last_texts=1,
        strong=tuple(range(3, 2 + len(against), 2)),
        sortable=False,
    )


_RATES = " Tokens a second: factor of increase."

_Row = tuple[str, ...]
"""Label, the first model's figure, a figure and its relation per other model,
source."""


def _row(
    label: str, texts: Sequence[str], against_first: Sequence[str], source: str
) -> _Row:
    first, *others = zip(texts, against_first, strict=True)
    return (label, first[0], *(text for pair in others for text in pair), source)


def _figures(row: _Row) -> _Row:
    return row[1], *row[2:-1:2]


def _file_rows(figures: Sequence[ModelFigures]) -> Iterator[_Row]:
    yield _size(file_label(figures), [f.model_file_bytes for f in figures], "measured")
    states = [f.optimizer_file_bytes for f in figures]
    if any(states):
        texts = [*map(format_bytes, states)]
        yield _row("optimizer state in the file", texts, [""] * len(texts), "measured")


def file_label(figures: Sequence[ModelFigures]) -> str:
    """Returns the row label of `model_file_bytes`."""
    has_state = any(f.optimizer_file_bytes for f in figures)
    return "file without optimizer state" if has_state else "file"


def _size(label: str, values: Sequence[int | None], source: str) -> _Row:
    texts = [bytes_or_missing(size) for size in values]
    return _row(label, texts, _times_less(values), source)


def _count(label: str, values: Sequence[int | None]) -> _Row:
    texts = [MISSING if n is None else f"{n:,}" for n in values]
    return _row(label, texts, _times_less(values), "counted")


def _rate(label: str, values: Sequence[float | None]) -> _Row:
    texts = [MISSING if value is None else f"{value:,.0f}" for value in values]
    first = values[0]
    ratios = [f"{v / first:.2f}x" if v and first else "" for v in values]
    return _row(label, texts, ratios, "measured")


def _duration(label: str, values: Sequence[float | None]) -> _Row:
    texts = [MISSING if value is None else format_ms(value) for value in values]
    return _row(label, texts, _times_less(values), "measured")


def _latency(figures: Sequence[ModelFigures]) -> _Row:
    batch = next((f.latency_batch_size for f in figures if f.latency_batch_size), None)
    label = f"latency, batch of {batch}"
    if any(f.latency_low_ms is not None for f in figures):
        label += ": median (range of 80 % of the runs)"
    first, ratios = figures[0], _times_less([f.latency_ms for f in figures])
    against = [
        "no clear difference"
        if ratio and first.is_clearly_faster(f) is f.is_clearly_faster(first) is False
        else ratio
        for f, ratio in zip(figures, ratios, strict=True)
    ]
    return _row(label, [_time(f) for f in figures], against, "measured")


def _time(figures: ModelFigures) -> str:
    if figures.latency_ms is None:
        return MISSING
    low, high = figures.latency_low_ms, figures.latency_high_ms
    if low is None or high is None:
        return format_ms(figures.latency_ms)
    return f"{format_ms(figures.latency_ms)}\n({format_ms(low)} to {format_ms(high)})"


def _metric(label: str, values: Sequence[float | None]) -> _Row:
    texts = [MISSING if value is None else f"{value:.4f}" for value in values]
    first = values[0]
    differences = [
        "" if first is None or value is None else f"{value - first:+.4f}"
        for value in values
    ]
    return _row(label, texts, differences, "measured")


def _times_less(values: Sequence[float | None]) -> list[str]:
    first = values[0]
    ratios = [first / value if first and value else None for value in values]
    return ["" if r is None else f"{r:.{2 if r < 9.995 else 1}f}x" for r in ratios]
