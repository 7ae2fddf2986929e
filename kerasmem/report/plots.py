"""Series over the epochs as SVG, for the HTML page."""

import io
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from kerasmem.records import GradientRecord, MemoryRecord
from kerasmem.units import to_mib

# Legible on white and on near-black alike, and apart for the color-blind.
_COLORS = ("#2a78d6", "#d97706", "#1a9a6c", "#b04fc4")
_GRAY = "#808890"


@dataclass(frozen=True)
class Figure:
    """One plot for the page.

    Args:
        title: what stands above it.
        description: what it shows, in words, for those who cannot see it.
        svg: the plot itself, as an `<svg>` element.
    """

    title: str
    description: str
    svg: str


def memory_figure(records: Sequence[MemoryRecord]) -> Figure | None:
    """Return the peak of every device and of the process per epoch, in MiB.

    Returns:
        The figure, or None without a record of the end of an epoch of training.
    """
    ends = [r for r in records if r.batch is None and r.phase == "train"]
    series: dict[str, list[tuple[int, float]]] = {}
    for record in ends:
        for device in record.devices:
            partly = "" if device.complete else " (requests from 256 KiB)"
            points = series.setdefault(f"{device.name} peak{partly}", [])
            points.append((record.epoch, to_mib(device.peak_bytes)))
        if record.host is not None:
            points = series.setdefault("process peak", [])
            points.append((record.epoch, to_mib(record.host.peak_bytes)))
    return _figure("Memory per epoch, MiB", series)


def gradient_figure(records: Sequence[GradientRecord]) -> Figure | None:
    """Return the mean and the largest gradient norm per epoch, None without records."""
    series = {
        "mean norm": [(record.epoch, record.norm) for record in records],
        "largest norm": [(record.epoch, record.norm_max) for record in records],
    }
    return _figure("Gradient norm (L2) per epoch", series if records else {})


def _figure(
    title: str, series: Mapping[str, Sequence[tuple[int, float]]]
) -> Figure | None:
    if not series:
        return None
    sentences = [
        f"{name}: from {points[0][1]:.4g} in epoch {points[0][0] + 1} to "
        f"{points[-1][1]:.4g} in epoch {points[-1][0] + 1}."
        for name, points in series.items()
    ]
    return Figure(title, " ".join(sentences), _svg(title, series))


def _svg(title: str, series: Mapping[str, Sequence[tuple[int, float]]]) -> str:
    # The object interface of matplotlib: pyplot would keep global state.
    from matplotlib import rc_context
    from matplotlib.figure import Figure as Canvas

    # Text stays text. The ids in the file are the same in every run, and others in
    # every figure on the page.
    with rc_context({"svg.fonttype": "none", "svg.hashsalt": title}):
        canvas = Canvas(figsize=(7.2, 3.2), layout="constrained")
        axes = canvas.add_subplot()
        for (name, points), color in zip(series.items(), _cycle(series), strict=True):
            epochs = [epoch + 1 for epoch, _ in points]
            axes.plot(epochs, [y for _, y in points], "o-", color=color, label=name)
        _dress(axes)
        canvas.legend(
            loc="outside upper left", ncols=4, frameon=False, labelcolor=_GRAY
        )
        text = io.StringIO()
        canvas.savefig(text, format="svg", transparent=True, metadata={"Date": None})
    return without_ids(text.getvalue())


def without_ids(svg: str) -> str:
    """Return the `<svg>` element of a file without the ids of its groups.

    They are the same in every figure, and nothing refers to them.
    """
    return re.sub(r'<g id="[^"]*"', "<g", svg[svg.index("<svg") :])


def _cycle(series: Mapping[str, object]) -> list[str]:
    return [_COLORS[index % len(_COLORS)] for index in range(len(series))]


def _dress(axes: Any) -> None:
    """Give the axes of a series over epochs their labels and looks."""
    from matplotlib.ticker import MaxNLocator

    dress_axes(axes, "epoch")
    axes.set_ylim(bottom=0)
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))


def dress_axes(axes: Any, x_label: str, y_label: str = "") -> None:
    """Give the axes labels and a gray that shows on light and on dark."""
    axes.set_xlabel(x_label, color=_GRAY)
    axes.set_ylabel(y_label, color=_GRAY)
    axes.tick_params(which="both", colors=_GRAY)
    axes.grid(visible=True, color=_GRAY, alpha=0.25)
    for spine in axes.spines.values():
        spine.set_visible(False)
