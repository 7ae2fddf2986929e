"""The page of a compression."""

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
from kerasmem.report.comparison import models_table
from kerasmem.report.page.html import html_page, write_html
from kerasmem.report.page.packing import Packer
from kerasmem.report.page.panels import packed_panels
from kerasmem.report.page.table import Table
from kerasmem.report.run.epochs import later_fits
from kerasmem.report.run.gradients import gradient_flow, norm_panel, norm_table
from kerasmem.report.run.memory import memory_panels, memory_tables
from kerasmem.report.search import trial_table
from kerasmem.units import format_bytes


@dataclass(frozen=True)
class SearchChart:
    """The trials as points, in words.

    Args:
        title: what stands above the chart.
        words: what it shows, for those who cannot see it.
        across: what its horizontal axis is of.
    """

    title: str
    words: str
    across: str


def search_chart(report: SearchReport) -> SearchChart:
    """Return the words of the chart of drop against cost."""
    taken = report.trials[report.chosen]
    of = "limit" if report.target else "unchanged file"
    bounds = of if report.max_drop is None else f"{of}, and the largest drop allowed"
    words = (
        f"{len(report.trials)} trials, {sum(t.on_front for t in report.trials)} on the "
        f"Pareto front. Taken: {taken.name}, {taken.over:.2f} of the {of}, drop "
        f"{taken.drop:+.4f}. Thin: a standard error up and down. Dotted: the {bounds}."
    )
    return SearchChart(
        f"Drop of {report.metric} by share of the {of}", words, f"share of the {of}"
    )


def packed_trials(report: SearchReport, packer: Packer) -> dict[str, Any]:
    """Return what `points.js` reads."""
    trials = report.trials
    table = trial_table(report)
    rows = [
        [pair for pair in zip(table.columns[1:], row[1:], strict=True) if pair[1]]
        for row in table.rows
    ]
    return {
        "names": [trial.name for trial in trials],
        "rows": rows,
        "x": packer.place([trial.over for trial in trials]),
        "y": packer.place([trial.drop for trial in trials]),
        "error": packer.place([trial.drop_error for trial in trials]),
        "front": [i for i, trial in enumerate(trials) if trial.on_front],
        "taken": report.chosen,
        "most": packer.place([] if report.max_drop is None else [report.max_drop]),
        "across": search_chart(report).across,
        "up": f"drop of {report.metric}",
    }


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
    """Return the variables of the template; `packed` is what the scripts read."""
    search = page.search
    norms = norm_panel(page.gradients)
    panels = [*memory_panels(page.memory), *([norms] if norms else [])]
    fits = later_fits(Run(memory=page.memory, gradients=page.gradients))
    packer = Packer()
    packed = packer.pack(
        {
            "fits": packer.whole(fits),
            "panels": packed_panels(panels, packer),
            "search": packed_trials(search, packer) if search else None,
        }
    )
    flow = gradient_flow(page.gradients)
    return {
        "packed": packed,
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


def weight_table(changes: Sequence[WeightChange]) -> Table:
    """Return what each technique did to each weight, and what it skipped and why."""
    measured = any(change.output_sqnr_db is not None for change in changes)
    rows = [
        (
            change.weight,
            change.technique,
            change.detail if change.changed else f"skipped: {change.detail}",
            format_bytes(change.before_bytes),
            format_bytes(change.after_bytes),
            _decibels(change.sqnr_db),
            *([_decibels(change.output_sqnr_db)] if measured else []),
        )
        for change in changes
    ]
    head = ("weight", "technique", "what was done", "before", "after")
    return Table(
        "Every weight",
        (*head, "signal to noise", *(["of outputs"] if measured else [])),
        tuple(rows),
        texts=3,
        row_looks={i: "soft" for i, c in enumerate(changes) if not c.changed},
    )


def _counted(changes: Sequence[WeightChange]) -> str:
    weights = {change.weight for change in changes}
    changed = {change.weight for change in changes if change.changed}
    return f"{len(changed):,} changed, {len(weights) - len(changed):,} left alone"


def _decibels(ratio: float | None) -> str:
    return "" if ratio is None else f"{ratio:.1f} dB"


STYLES = ("compression.css",)
SCRIPTS = ("points.js", "main.js")
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
