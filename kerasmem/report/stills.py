"""Still plots of an estimate, a compression, a run and a timeline."""

import math
from collections.abc import Mapping, Sequence
from typing import Any

from kerasmem.errors import ConfigError
from kerasmem.records import CATEGORIES, CompressionReport, MemoryEstimate, Timeline
from kerasmem.records.comparison import file_label
from kerasmem.records.estimate import NO_LAYER
from kerasmem.report.page.panels import Panel
from kerasmem.report.plot import COLORS, TEXT, Plot, drawing
from kerasmem.report.run.timelines import sizes_by_category, timeline_title
from kerasmem.units import MIB, format_bytes, format_ms

_SERIES = list(COLORS.values())
_CATEGORY_COLORS = dict(zip(CATEGORIES, _SERIES, strict=True))
_MOST_MOMENTS = 120


def estimate_plot(estimate: MemoryEstimate, layers: int = 8) -> Plot:
    """Return bars of what is in use at the peak, by category and by layer.

    Args:
        estimate: the estimate.
        layers: number of layers, the largest ones.
    """
    categories = {k.replace("_", " "): v for k, v in estimate.by_category().items()}
    largest = [*estimate.by_layer().items()][:layers]
    bars = [categories, {layer or NO_LAYER: size for layer, size in largest}]
    words = (
        f"estimated peak {format_bytes(estimate.peak_bytes)}, between "
        f"{format_bytes(estimate.low_bytes)} and {format_bytes(estimate.high_bytes)}, "
        f"batch of {estimate.batch_size}"
    )
    with drawing(2, 1.4 + 0.27 * sum(map(len, bars))) as (figure, axes):
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
    """Return bars of what is left of a model after compression, metrics in words."""
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
    known = [pair for pair in pairs if pair[1] and pair[2] is not None]
    shares = [100 * new / old for _, old, new, _ in known]
    texts = [f"{text(old)} → {text(new)}" for _, old, new, text in known]
    metrics = [
        f"{name} {value:.4g} → {after.metrics[name]:.4g}"
        for name, value in before.metrics.items()
        if name in after.metrics
    ]
    with drawing(1, 0.9 + 0.4 * len(known)) as (figure, (axes,)):
        bars = axes.barh([name for name, *_ in known], shares, color=COLORS["blue"])
        axes.bar_label(bars, texts, padding=4)
        axes.axvline(100, color=TEXT, linestyle=":")
        axes.set_xlim(0, 1.45 * max(100, *shares))
        axes.set_xlabel("% of the original")
        axes.set_title(", ".join(metrics) or "before and after", loc="left")
        axes.invert_yaxis()
    rows = [f"{name} {text}" for (name, *_), text in zip(known, texts, strict=True)]
    return Plot(figure, "; ".join([*rows, *metrics]))


def panels_plot(panels: Sequence[Panel]) -> Plot:
    """Return lines over the epochs, one chart for each panel.

    Raises:
        ConfigError: if there is none.
    """
    if not panels:
        raise ConfigError(
            "Nothing was recorded yet. Expected: a monitor that has watched a fit. "
            "Received: no record."
        )
    with drawing(len(panels), 0.3 + 2.1 * len(panels)) as (figure, axes):
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
    """Return the bytes in use by category over the window of the fullest allocator.

    Raises:
        ConfigError: if there is no timeline.
    """
    if not timelines:
        raise ConfigError(
            "There is no timeline. Expected: one of steps that were trained, on an "
            "allocator that tells of them. Received: timelines=[]."
        )
    timeline = max(timelines, key=lambda one: one.peak_bytes)
    sizes = sizes_by_category(timeline)
    moments = range(0, sizes.shape[1], max(1, sizes.shape[1] // _MOST_MOMENTS))
    peak = 0 if timeline.peak_event is None else timeline.peak_event + 1
    shown = sorted({*moments, peak})
    used = [i for i in range(len(CATEGORIES)) if sizes[i].any()]
    words = f"{timeline_title(timeline)}: peak {format_bytes(timeline.peak_bytes)}"
    with drawing(1, 3.2) as (figure, (axes,)):
        axes.stackplot(
            shown,
            sizes[used][:, shown] / MIB,
            labels=[CATEGORIES[i].replace("_", " ") for i in used],
            colors=[_CATEGORY_COLORS[CATEGORIES[i]] for i in used],
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
