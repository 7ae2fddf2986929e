"""What the page's template and its scripts are given of a run."""

from typing import Any

from kerasmem.records import MemoryRecord, Run, gravest_first
from kerasmem.records.post_mortem_words import remedy_words
from kerasmem.report.page.packing import Packer
from kerasmem.report.page.panels import packed_panels
from kerasmem.report.run.epochs import later_fits
from kerasmem.report.run.gradient_tables import norm_table, variable_table
from kerasmem.report.run.gradients import (
    MEASURES,
    GradientFlow,
    gradient_flow,
    norm_panel,
)
from kerasmem.report.run.losses import loss_panel, loss_table
from kerasmem.report.run.memory import memory_panels
from kerasmem.report.run.memory_tables import memory_tables
from kerasmem.report.run.post_mortems import shown
from kerasmem.report.run.timeline_tables import course_table, peak_table
from kerasmem.report.run.timelines import chosen, timeline_columns, timeline_title

MOST_FINDINGS = 5
"""That stand before the charts; the others can be unfolded."""


def page_content(run: Run) -> dict[str, Any]:
    """Return the variables of the template; `packed` is what the scripts read."""
    of_training = (loss_panel(run), norm_panel(run.gradients))
    panels = [*filter(None, of_training), *memory_panels(run.memory)]
    model = run.info.model if run.info else ""
    flow = gradient_flow(run.gradients, model)
    timelines, timelines_note = chosen(run.timelines)
    post_mortems, post_mortems_note = shown(run.post_mortems)
    findings = gravest_first(run.findings)
    later = later_fits(run)
    packer = Packer()
    packed = packer.pack(
        {
            "fits": packer.whole(later),
            "panels": packed_panels(panels, packer),
            "flow": _flow(flow, packer),
            "timelines": [timeline_columns(t, packer, model) for t in timelines],
        }
    )
    tables = [loss_table(run), norm_table(run.gradients, flow)]
    return {
        "packed": packed,
        "findings": findings[:MOST_FINDINGS],
        "more_findings": findings[MOST_FINDINGS:],
        "later_fits": later,
        "panels": panels,
        "epoch_tables": [*tables, *memory_tables(run.memory)],
        "batches": sum(_is_batch(record) for record in run.memory),
        "flow": flow,
        "variable_table": variable_table(flow),
        "timelines": [
            (timeline_title(t), t, [peak_table(t, model), course_table(t)])
            for t in timelines
        ],
        "timelines_note": timelines_note,
        "post_mortems": post_mortems,
        "post_mortems_note": post_mortems_note,
        "remedy_words": remedy_words,
    }


def _is_batch(record: MemoryRecord) -> bool:
    return record.batch is not None


def _flow(flow: GradientFlow, packer: Packer) -> dict[str, Any]:
    return {
        "paths": flow.paths,
        "columns": packer.whole(flow.columns),
        "measures": {name: packer.real(flow.measures[name]) for name in MEASURES},
    }
