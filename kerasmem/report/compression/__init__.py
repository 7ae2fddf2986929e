"""Self-contained HTML page of a compression or search, and the table of trials."""

import importlib.metadata
import platform
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import keras
import rich.table

from kerasmem.compression.search.target import cost_value
from kerasmem.records import ModelFigures, SearchReport, WeightChange
from kerasmem.records.comparison import models_table
from kerasmem.records.table import Table, terminal_table
from kerasmem.records.weights import weight_table
from kerasmem.report.page.html import html_page, write_html
from kerasmem.report.page.panels import Packer


@dataclass(frozen=True)
class Page:
    """Content of the page. Empty parts are omitted.

    Args:
        title: Heading of the page.
        models: Figures by model name, the reference first.
        changes: Changes per weight and technique.
        origin: Information to reproduce the result, such as `{"command": ..., "seed":
            ...}`.
        search: Report of the search, or `None` if the techniques were specified.
        warning: Warning of a severe degradation, shown at the top.
    """

    title: str
    models: Mapping[str, ModelFigures] = field(default_factory=dict[str, ModelFigures])
    changes: tuple[WeightChange, ...] = ()
    origin: Mapping[str, object] = field(default_factory=dict[str, object])
    search: SearchReport | None = None
    warning: str = ""


STYLES = ("compression.css",)
SCRIPTS = ("main.js",)
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
        packed=Packer().pack({"fits": [], "panels": []}),
        models=models_table(page.models) if page.models else None,
        trials=trial_table(page.search) if page.search else None,
        changes=weight_table(page.changes),
        changes_summary=_counted(page.changes),
    )


def _counted(changes: Sequence[WeightChange]) -> str:
    weights = {change.weight for change in changes}
    count = len({change.weight for change in changes if change.changed})
    return f"{count:,} changed, {len(weights) - count:,} unchanged"


def _versions() -> dict[str, str]:
    versions = {"backend": keras.backend.backend(), "Python": platform.python_version()}
    for package in _PACKAGES:
        try:
            versions[package] = importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            continue  # jax and torch are extras
    return versions


def trial_table(report: SearchReport) -> Table:
    """Returns all trials of a search in order, with the selected trial in bold."""
    costs = list(report.trials[0].costs)
    rows = [
        (
            trial.name,
            f"{trial.epochs} epochs" if trial.epochs else "",
            *(cost_value(name, value) for name, value in trial.costs.items()),
            f"{trial.drop:+.4f} ± {trial.drop_error:.4f}",
            "yes" if trial.on_front else "",
        )
        for trial in report.trials
    ]
    return Table(
        "Trials",
        (
            "techniques",
            "trained",
            *costs,
            f"drop of {report.metric}, standard error",
            "Pareto front",
        ),
        tuple(rows),
        texts=2,
        last_texts=1,
        note=f"{_about(report)}. The selected trial is bold.",
        row_looks={report.chosen: "strong"},
    )


def search_table(report: SearchReport) -> rich.table.Table:
    """Returns the trials for the terminal, with the selected trial in bold."""
    return terminal_table(trial_table(report), _about(report))


def _about(report: SearchReport) -> str:
    limits = [
        f"{name} up to {cost_value(name, n)}" for name, n in report.target.items()
    ]
    if report.max_drop is not None:
        limits.append(f"a drop up to {report.max_drop:g}")
    return (
        f"Search for {', '.join(limits)}; evaluated on {report.samples} samples not "
        f"used for training; {report.stopped}"
    )
