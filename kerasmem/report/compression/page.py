"""The page of a compression."""

import importlib.metadata
import platform
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import keras

from kerasmem.compression.prune.analysis import Sensitivity
from kerasmem.records import (
    GradientRecord,
    MemoryRecord,
    ModelFigures,
    Run,
    SearchReport,
    WeightChange,
)
from kerasmem.records.comparison import models_table
from kerasmem.records.weights import weight_table
from kerasmem.report.compression.bars import layer_bars, model_bars, packed_bars
from kerasmem.report.compression.curves import (
    history_panels,
    history_table,
    sensitivity_panel,
    sensitivity_table,
)
from kerasmem.report.page.html import html_page, write_html
from kerasmem.report.page.packing import Packer
from kerasmem.report.page.panels import packed_panels
from kerasmem.report.run.epochs import later_fits
from kerasmem.report.run.gradients import gradient_flow, norm_panel, norm_table
from kerasmem.report.run.memory import memory_panels, memory_tables
from kerasmem.report.search import packed_trials, search_chart, trial_table


@dataclass(frozen=True)
class Page:
    """What the page shows; what is empty is left out.

    Args:
        title: heading of the page.
        models: figures by the model's name, the one to compare with first.
        changes: every weight, changed or skipped.
        memory: what a `MemoryMonitor` recorded.
        gradients: what a `GradientMonitor` recorded.
        origin: what it takes to do it again, such as `{"command": ..., "seed": ...}`.
        search: how the techniques were found; None if they were given.
        warning: what is far worse than before, the first line of the page.
        history: losses and metrics of a training, by name and epoch.
        sensitivity: the metric as each weight alone is pruned; None if not measured.
    """

    title: str
    models: Mapping[str, ModelFigures] = field(default_factory=dict[str, ModelFigures])
    changes: tuple[WeightChange, ...] = ()
    memory: tuple[MemoryRecord, ...] = ()
    gradients: tuple[GradientRecord, ...] = ()
    origin: Mapping[str, object] = field(default_factory=dict[str, object])
    search: SearchReport | None = None
    warning: str = ""
    history: Mapping[str, Sequence[float]] = field(
        default_factory=dict[str, Sequence[float]]
    )
    sensitivity: Sensitivity | None = None


def page_content(page: Page) -> dict[str, Any]:
    """Return the variables of the template; `packed` is what the scripts read."""
    search = page.search
    norms = norm_panel(page.gradients)
    panels = [
        *memory_panels(page.memory),
        *([norms] if norms else []),
        *history_panels(page.history),
    ]
    sensitivity = page.sensitivity
    alone = [sensitivity_panel(sensitivity)] if sensitivity else []
    fits = later_fits(Run(memory=page.memory, gradients=page.gradients))
    packer = Packer()
    of_models, of_layers = model_bars(page.models), layer_bars(page.changes)
    packed = packer.pack(
        {
            "bars": packed_bars({"models": of_models, "layers": of_layers}, packer),
            "fits": packer.whole(fits),
            "panels": packed_panels([*panels, *alone], packer),
            "search": packed_trials(search, packer) if search else None,
        }
    )
    flow = gradient_flow(page.gradients)
    return {
        "packed": packed,
        "of_models": of_models,
        "of_layers": of_layers,
        "models": models_table(page.models) if page.models else None,
        "panels": panels,
        "alone": alone,
        "alone_table": sensitivity_table(sensitivity) if sensitivity else None,
        "epoch_tables": [
            *memory_tables(page.memory),
            norm_table(page.gradients, flow),
            history_table(page.history),
        ],
        "chart": search_chart(search) if search else None,
        "trials": trial_table(search) if search else None,
        "changes": weight_table(page.changes),
        "changes_summary": _counted(page.changes),
    }


def _counted(changes: Sequence[WeightChange]) -> str:
    weights = {change.weight for change in changes}
    changed = {change.weight for change in changes if change.changed}
    return f"{len(changed):,} changed, {len(weights) - len(changed):,} left alone"


STYLES = ("compression.css",)
SCRIPTS = ("points.js", "bars.js", "main.js")
_PACKAGES = ("kerasmem", "keras", "tensorflow", "jax", "torch", "numpy")


def write_page(path: str | Path, page: Page) -> None:
    """Write the page to `path`, whole or not at all.

    Raises:
        OutputError: if it cannot be written; what was there before stays.
    """
    write_html(path, render_page(page))


def render_page(page: Page) -> str:
    """Return the page as HTML; all text in it is escaped."""
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
