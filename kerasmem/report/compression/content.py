"""What the page's template and its scripts are given of a compression."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from kerasmem.records import (
    GradientRecord,
    MemoryRecord,
    ModelFigures,
    Run,
    SearchReport,
    WeightChange,
)
from kerasmem.report.comparison import models_table
from kerasmem.report.compression.trials import packed_trials, search_chart
from kerasmem.report.page.packing import Packer
from kerasmem.report.page.panels import packed_panels
from kerasmem.report.page.table import Table
from kerasmem.report.run.epochs import later_fits
from kerasmem.report.run.gradient_tables import norm_table
from kerasmem.report.run.gradients import gradient_flow, norm_panel
from kerasmem.report.run.memory import memory_panels
from kerasmem.report.run.memory_tables import memory_tables
from kerasmem.report.search import trial_table
from kerasmem.units import format_bytes


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
