"""Static matplotlib charts, readable on light and dark backgrounds.

Charts of an estimate, a compression, a run and a timeline.
"""

import io
import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from kerasmem.errors import ConfigError, OutputError
from kerasmem.files.atomic import replacing
from kerasmem.records import (
    CATEGORIES,
    CompressionReport,
    MemoryEstimate,
    Timeline,
)
from kerasmem.records.comparison import file_label
from kerasmem.records.estimate import NO_LAYER
from kerasmem.report.page.panels import Panel
from kerasmem.report.run.timelines import sizes_by_category, timeline_title
from kerasmem.units import MIB, format_bytes, format_ms

TEXT = "#797979"
"""Text color with a contrast of 4.3:1 to white and to a dark notebook background."""

COLORS = {
    "blue": "#3b7dd8",
    "orange": "#c8741a",
    "green": "#2f9463",
    "purple": "#a25fc0",
    "teal": "#2a8f9c",
    "red": "#d04a4a",
    "gray": "#8a8a8a",
}
"""Colors of lines and bars, with a contrast of at least 3:1 to both backgrounds."""

_LOOK: dict[Any, Any] = {
    "axes.edgecolor": TEXT,
    "axes.labelcolor": TEXT,
    "axes.titlecolor": TEXT,
    "axes.titlesize": "medium",
    "axes.spines.top": False,
    "axes.spines.right": False,
    "figure.facecolor": "none",
    "axes.facecolor": "none",
    "font.family": "sans-serif",
    "legend.frameon": False,
    "legend.labelcolor": TEXT,
    "savefig.transparent": True,
    "svg.fonttype": "none",  # text instead of outlines, for small files
    "svg.hashsalt": "kerasmem",  # reproducible files
    "text.color": TEXT,
    "text.parse_math": False,  # user-defined names are not formulas
    "xtick.color": TEXT,
    "ytick.color": TEXT,
}


class Plot:
    """A static chart. Notebooks display the chart, and `save` writes it to a file.

    Args:
        figure: A `matplotlib.figure.Figure`.
        words: Text description, for screen readers.

    Attributes:
        figure: The figure, which may be modified before display.

    Example:
        >>> from matplotlib.figure import Figure
        >>> Plot(Figure(), "nothing yet")
        <Plot: nothing yet>
    """

    def __init__(self, figure: Any, words: str) -> None:
        self.figure, self._words = figure, words

    def __repr__(self) -> str:
        return f"<Plot: {self._words}>"

    def _repr_svg_(self) -> str:
        return self._drawn("svg").decode()

    def save(self, path: str | Path) -> None:
        """Writes the chart atomically.

        Args:
            path: Path of the file. The suffix sets the format: `.svg`, `.png` or
                `.pdf`.

        Raises:
            OutputError: If the file cannot be written, or the format is not supported.
        """
        path = Path(path)
        form = path.suffix[1:].lower()
        formats = self.figure.canvas.get_supported_filetypes()
        if form not in formats:
            raise OutputError(
                f"Expected a suffix of {', '.join(sorted(formats))}. Received: "
                f"path={str(path)!r}."
            )
        content = self._drawn(form)
        with replacing(path) as temporary:
            temporary.write_bytes(content)

    def _drawn(self, form: str) -> bytes:
        import matplotlib as mpl

        file = io.BytesIO()
        title = {"Title": self._words}
        no_date = {"Date": None} if form == "svg" else {}
        metadata = title | no_date if form in {"svg", "pdf", "png"} else None
        with mpl.rc_context(_LOOK):
            self.figure.savefig(file, format=form, metadata=metadata, dpi=160)
        return file.getvalue()


@contextmanager
def _drawing(rows: int, height: float) -> Iterator[tuple[Any, list[Any]]]:
    """Yields a figure with stacked axes in the style of kerasmem."""
    import matplotlib as mpl
    from matplotlib.figure import Figure

    with mpl.rc_context(_LOOK):
        figure = Figure(figsize=(7, height), layout="constrained")
        axes = figure.subplots(rows, squeeze=False)[:, 0]
        yield figure, list(axes)


_SERIES = list(COLORS.values())
_CATEGORY_COLORS = dict(zip(CATEGORIES, _SERIES, strict=True))
_MOST_MOMENTS = 120


def estimate_plot(estimate: MemoryEstimate, layers: int = 8) -> Plot:
    """Returns a bar chart of the estimated peak by category and by layer."""
    categories = {k.replace("_", " "): v for k, v in estimate.by_category().items()}
    largest = [*estimate.by_layer().items()][:layers]
    bars = [categories, {layer or NO_LAYER: size for layer, size in largest}]
    words = (
        f"estimated peak {format_bytes(estimate.peak_bytes)}, between "
        f"{format_bytes(estimate.low_bytes)} and {format_bytes(estimate.high_bytes)}, "
        f"batch of {estimate.batch_size}"
    )
    with _drawing(2, 1.4 + 0.27 * sum(map(len, bars))) as (figure, axes):
        for one, sizes, color in zip(axes, bars, _SERIES, strict=False):
            _draw_sizes(one, sizes, color)
        axes[0].set_title(words, loc="left")
        axes[0].set_ylabel("category")
        axes[1].set_ylabel("layer")
        axes[1].set_xlabel("MiB at the peak")
    return Plot(figure, words)


def _draw_sizes(axes: Any, sizes: Mapping[str, int], color: str) -> None:
    bars = axes.barh([*sizes], [size / MIB for size in sizes.values()], color=color)
    axes.bar_label(bars, [format_bytes(s) for s in sizes.values()], padding=3)
    axes.invert_yaxis()
    axes.margins(x=0.15)


def comparison_plot(report: CompressionReport) -> Plot:
    """Returns a bar chart of the sizes after compression relative to before.

    Raises `ConfigError` if the report has no size and no time.
    """
    before, after = report.before, report.after
    file = file_label((before, after))
    pairs = [
        (file, before.model_file_bytes, after.model_file_bytes, format_bytes),
        ("weights in RAM", before.weight_bytes, after.weight_bytes, format_bytes),
        ("nonzero weights", before.nonzero, after.nonzero, "{:,}".format),
        (
            "activation peak",
            before.activation_peak_bytes,
            after.activation_peak_bytes,
            format_bytes,
        ),
        ("time of a batch", before.latency_ms, after.latency_ms, format_ms),
    ]
    rows_with_values = [pair for pair in pairs if pair[1] and pair[2] is not None]
    if not rows_with_values:
        raise ConfigError(
            "The report has no size or time to plot. Next: measure one of them, such "
            'as km.compress(measure=("file", "weights")).'
        )
    shares = [100 * new / old for _, old, new, _ in rows_with_values]
    texts = [f"{text(old)} → {text(new)}" for _, old, new, text in rows_with_values]
    metrics = [
        f"{name} {value:.4g} → {after.metrics[name]:.4g}"
        for name, value in before.metrics.items()
        if name in after.metrics
    ]
    with _drawing(1, 0.9 + 0.4 * len(rows_with_values)) as (figure, (axes,)):
        bars = axes.barh(
            [name for name, *_ in rows_with_values], shares, color=COLORS["blue"]
        )
        axes.bar_label(bars, texts, padding=4)
        axes.axvline(100, color=TEXT, linestyle=":")
        axes.set_xlim(0, 1.45 * max(100, *shares))
        axes.set_xlabel("% of the original")
        axes.set_title(", ".join(metrics) or "before and after", loc="left")
        axes.invert_yaxis()
    rows = [
        f"{name} {text}"
        for (name, *_), text in zip(rows_with_values, texts, strict=True)
    ]
    return Plot(figure, "; ".join([*rows, *metrics]))


def panels_plot(panels: Sequence[Panel]) -> Plot:
    """Returns a line chart for each panel.

    Raises `ConfigError` if there is no panel.
    """
    if not panels:
        raise ConfigError(
            "Nothing was recorded yet. Expected: a monitor that was used in a fit. "
            "Received: no record."
        )
    with _drawing(len(panels), 0.3 + 2.1 * len(panels)) as (figure, axes):
        for one, panel in zip(axes, panels, strict=True):
            _draw_lines(one, panel)
        axes[-1].set_xlabel(panels[-1].step)
    return Plot(figure, " ".join(f"{panel.title}. {panel.words}" for panel in panels))


def _draw_lines(axes: Any, panel: Panel) -> None:
    scale = MIB if panel.unit == "bytes" else 1
    for line, color in zip(panel.lines, _SERIES * len(panel.lines), strict=False):
        look = "o" if line.style == "first" or len(line.x) < 3 else "-"
        axes.plot(
            line.x,
            [value / scale for value in line.y],
            look,
            color=color,
            label=line.name,
        )
    for mark in panel.marks:
        axes.axvline(mark, color=COLORS["red"], linestyle=":")
    positive = all(y > 0 for line in panel.lines for y in line.y if math.isfinite(y))
    if panel.unit == "log" and positive:
        _scale_by_powers(axes)
    axes.set_title(panel.title, loc="left")
    axes.set_ylabel("MiB" if panel.unit == "bytes" else "")
    axes.xaxis.get_major_locator().set_params(integer=True)
    axes.legend(loc="center left", bbox_to_anchor=(1, 0.5))


def _scale_by_powers(axes: Any) -> None:
    from matplotlib.ticker import LogFormatter

    axes.set_yscale("log")
    axes.yaxis.set_major_formatter(LogFormatter())
    axes.yaxis.set_minor_formatter(LogFormatter(minor_thresholds=(2, 0.5)))


def timeline_plot(timelines: Sequence[Timeline]) -> Plot:
    """Returns the memory in use by category, for the allocator with the highest peak.

    Raises `ConfigError` if there is no timeline.
    """
    if not timelines:
        raise ConfigError(
            "There is no timeline. Expected: a timeline of training steps, from a "
            "supported allocator. Received: timelines=[]."
        )
    timeline = max(timelines, key=lambda one: one.peak_bytes)
    sizes = sizes_by_category(timeline)
    moments = range(0, sizes.shape[1], max(1, sizes.shape[1] // _MOST_MOMENTS))
    peak = 0 if timeline.peak_event is None else timeline.peak_event + 1
    moments_shown = sorted({*moments, peak})
    category_numbers = [i for i in range(len(CATEGORIES)) if sizes[i].any()]
    words = f"{timeline_title(timeline)}: peak {format_bytes(timeline.peak_bytes)}"
    with _drawing(1, 3.2) as (figure, (axes,)):
        axes.stackplot(
            moments_shown,
            sizes[category_numbers][:, moments_shown] / MIB,
            labels=[CATEGORIES[i].replace("_", " ") for i in category_numbers],
            colors=[_CATEGORY_COLORS[CATEGORIES[i]] for i in category_numbers],
            step="post",
        )
        axes.axvline(peak, color=TEXT, linestyle=":")
        axes.set_title(words, loc="left")
        axes.set_xlabel("event of the allocator")
        axes.set_ylabel("MiB in use")
        handles, labels = axes.get_legend_handles_labels()
        place = {"loc": "center left", "bbox_to_anchor": (1, 0.5)}
        axes.legend(handles[::-1], labels[::-1], **place)
    return Plot(figure, words)
