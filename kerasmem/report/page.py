"""One self-contained HTML page: no network, light and dark, readable aloud."""

import importlib.metadata
import platform
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

import jinja2
import keras
from markupsafe import Markup

from kerasmem.files.atomic import replacing
from kerasmem.records import (
    GradientRecord,
    MemoryRecord,
    ModelFigures,
    SearchReport,
    WeightChange,
)
from kerasmem.report.comparison import comparison_rows
from kerasmem.report.plots import gradient_figure, memory_figure
from kerasmem.report.search import (
    cost_names,
    search_figure,
    search_title,
    trial_rows,
)
from kerasmem.units import format_bytes

_PACKAGES = ("kerasmem", "keras", "tensorflow", "jax", "torch", "numpy")


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


def write_page(path: str | Path, page: Page) -> None:
    """Write the page to `path`, whole or not at all.

    Raises:
        OutputError: if it cannot be written; what was there before stays.
    """
    html = render_page(page)
    with replacing(path) as temporary:
        temporary.write_text(html, encoding="utf-8")


def render_page(page: Page) -> str:
    """Return the page as HTML; all text in it is escaped."""
    environment = jinja2.Environment(
        loader=jinja2.PackageLoader("kerasmem.report", ""),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters["bytes"] = format_bytes
    figures = [memory_figure(page.memory), gradient_figure(page.gradients)]
    if page.search:
        figures.append(search_figure(page.search))
    return environment.get_template("page.html").render(
        page=page,
        rows=comparison_rows(page.models) if page.models else [],
        # matplotlib writes and escapes the SVG itself.
        figures=[(figure, Markup(figure.svg)) for figure in figures if figure],
        trials=trial_rows(page.search) if page.search else [],
        cost_names=cost_names(page.search) if page.search else [],
        search_title=search_title(page.search) if page.search else "",
        origin={**page.origin, **_versions()},
    )


def _versions() -> dict[str, str]:
    versions = {"backend": keras.backend.backend(), "Python": platform.python_version()}
    for package in _PACKAGES:
        try:
            versions[package] = importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            continue  # jax and torch are extras
    return versions
