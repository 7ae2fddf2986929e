"""HTML page of a compression."""

import importlib.metadata
import platform
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import keras

from kerasmem.records import (
    GradientRecord,
    MemoryRecord,
    ModelFigures,
    Run,
    SearchReport,
    WeightChange,
)
from kerasmem.records.comparison import file_label, models_table
from kerasmem.records.weights import weight_table
from kerasmem.report.page.html import html_page, write_html
from kerasmem.report.page.panels import Packer, packed_panels
from kerasmem.report.run.epochs import later_fits
from kerasmem.report.run.gradients import gradient_flow, norm_panel, norm_table
from kerasmem.report.run.memory import memory_panels, memory_tables
from kerasmem.report.search import packed_trials, search_chart, trial_table
from kerasmem.units import format_bytes, format_ms

_MOST_LAYERS = 16


@dataclass(frozen=True)
class Bars:
    """A bar chart with a bar per model, or for before and after, in each row.

    Args:
        title: Title of the chart.
        bars: Names of the bars of a row, in order.
        rows: Lengths of the bars by row, all with the same scale.
        texts: Labels of the bars by row.
    """

    title: str
    bars: tuple[str, ...]
    rows: Mapping[str, Sequence[float]]
    texts: Mapping[str, Sequence[str]]

    @property
    def words(self) -> str:
        """Text description of the chart, for screen readers."""
        return " ".join(
            f"{name}: {', '.join(map(' '.join, zip(self.bars, texts, strict=True)))}."
            for name, texts in self.texts.items()
        )


def model_bars(models: Mapping[str, ModelFigures]) -> Bars | None:
    """Returns the sizes and the latency of models relative to the first model.

    Returns `None` with fewer than two models or without a common figure.
    """
    figures = list(models.values())
    values_by_name = {
        file_label(figures): ([f.model_file_bytes for f in figures], format_bytes),
        "weights in RAM": ([f.weight_bytes for f in figures], format_bytes),
        "activation peak": ([f.activation_peak_bytes for f in figures], format_bytes),
        "median latency": ([f.latency_ms for f in figures], format_ms),
    }
    measured_values = {
        name: ([value for value in values if value], text)
        for name, (values, text) in values_by_name.items()
        if all(values)
    }
    if len(models) < 2 or not measured_values:
        return None
    return Bars(
        f"Size and time relative to “{next(iter(models))}”",
        tuple(models),
        {
            name: [v / values[0] for v in values]
            for name, (values, _) in measured_values.items()
        },
        {
            name: [*map(text, values)]
            for name, (values, text) in measured_values.items()
        },
    )


def layer_bars(changes: Sequence[WeightChange]) -> Bars | None:
    """Returns the bytes of each layer's weights in RAM before and after.

    Only the largest layers have separate rows. Returns `None` if no size changed.
    """
    first = dict[str, WeightChange]()
    for change in changes:
        first.setdefault(change.weight, change)
    last = {change.weight: change for change in changes}
    sizes = dict[str, tuple[int, int]]()
    for weight, change in first.items():
        layer = weight.rpartition("/")[0] or change.layer
        before, after = sizes.get(layer, (0, 0))
        sizes[layer] = (
            before + change.before_bytes,
            after + last[weight].after_bytes,
        )
    if all(before == after for before, after in sizes.values()):
        return None
    by_size = sorted(sizes, key=lambda layer: -sizes[layer][0])
    rows = {layer: sizes[layer] for layer in by_size[:_MOST_LAYERS]}
    if rest := [sizes[layer] for layer in by_size[_MOST_LAYERS:]]:
        before, after = map(sum, zip(*rest, strict=True))
        rows[f"{len(rest):,} smaller layers"] = (before, after)
    return Bars(
        "Weights of each layer in RAM",
        ("before", "after"),
        rows,
        {name: [*map(format_bytes, pair)] for name, pair in rows.items()},
    )


def packed_bars(charts: Mapping[str, Bars | None], packer: Packer) -> dict[str, Any]:
    """Returns the charts for the scripts, by name."""
    return {
        name: {
            "bars": chart.bars,
            "rows": [
                {"name": row, "values": packer.place(values), "texts": chart.texts[row]}
                for row, values in chart.rows.items()
            ],
        }
        for name, chart in charts.items()
        if chart
    }


@dataclass(frozen=True)
class Page:
    """Content of the page. Empty parts are omitted.

    Args:
        title: Heading of the page.
        models: Figures by model name, the reference first.
        changes: Changes per weight and technique.
        memory: Records of a `MemoryMonitor`.
        gradients: Records of a `GradientMonitor`.
        origin: Information to reproduce the result, such as `{"command": ..., "seed":
            ...}`.
        search: Report of the search, or `None` if the techniques were specified.
        warning: Warning of a severe degradation, shown at the top.
    """

    title: str
    models: Mapping[str, ModelFigures] = field(default_factory=dict[str, ModelFigures])
    changes: tuple[WeightChange, ...] = ()
    memory: tuple[MemoryRecord, ...] = ()
    gradients: tuple[GradientRecord, ...] = ()
    origin: Mapping[str, object] = field(default_factory=dict[str, object])
    search: SearchReport | None = None
    warning: str = ""


def page_content(page: Page) -> dict[str, Any]:
    """Returns the template variables. `packed` contains the data for the scripts."""
    search = page.search
    norms = norm_panel(page.gradients)
    panels = [*memory_panels(page.memory), *([norms] if norms else [])]
    fits = later_fits(Run(memory=page.memory, gradients=page.gradients))
    packer = Packer()
    of_models, of_layers = model_bars(page.models), layer_bars(page.changes)
    script_data = packer.pack(
        {
            "bars": packed_bars({"models": of_models, "layers": of_layers}, packer),
            "fits": packer.whole(fits),
            "panels": packed_panels(panels, packer),
            "search": packed_trials(search, packer) if search else None,
        }
    )
    flow = gradient_flow(page.gradients)
    return {
        "packed": script_data,
        "of_models": of_models,
        "of_layers": of_layers,
        "models": models_table(page.models) if page.models else None,
        "panels": panels,
        "epoch_tables": [
            *memory_tables(page.memory),
            norm_table(page.gradients, flow),
        ],
        "chart": search_chart(search) if search else None,
        "trials": trial_table(search) if search else None,
        "changes": weight_table(page.changes),
        "changes_summary": _counted(page.changes),
    }


def _counted(changes: Sequence[WeightChange]) -> str:
    weights = {change.weight for change in changes}
    count = len({change.weight for change in changes if change.changed})
    return f"{count:,} changed, {len(weights) - count:,} unchanged"


STYLES = ("compression.css",)
SCRIPTS = ("points.js", "bars.js", "main.js")
_PACKAGES = ("kerasmem", "keras", "tensorflow", "jax", "torch", "numpy")


def write_page(path: str | Path, page: Page) -> None:
    """Writes the page atomically."""
    write_html(path, render_page(page))


def render_page(page: Page) -> str:
    """Returns the page as HTML. All text is escaped."""
    return html_page(
        "kerasmem.report.compression",
        SCRIPTS,
        STYLES,
        page=page,
        title=page.title,
        origin={**page.origin, **_versions()},
        **page_content(page),
    )


def _versions() -> dict[str, str]:
    versions = {"backend": keras.backend.backend(), "Python": platform.python_version()}
    for package in _PACKAGES:
        try:
            versions[package] = importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            continue  # jax and torch are extras
    return versions
