"""HTML page of a monitored run, including its out-of-memory errors."""

import html
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from kerasmem.records import (
    GradientRecord,
    MemoryRecord,
    PostMortem,
    Run,
    gravest_first,
)
from kerasmem.records.estimate import NO_LAYER
from kerasmem.records.post_mortem import (
    cause_sentence,
    fitting_sentence,
    moment_words,
    peak_words,
    remedy_words,
)
from kerasmem.records.table import MOST_ROWS, Table, evenly, number_text, share_text
from kerasmem.report.page.html import html_page, write_html
from kerasmem.report.page.panels import Lines, Packer, Panel, packed_panels
from kerasmem.report.run.epochs import continued, later_fits
from kerasmem.report.run.gradients import (
    MEASURES,
    gradient_flow,
    norm_panel,
    norm_table,
    variable_table,
)
from kerasmem.report.run.headline import Figure, headline, title
from kerasmem.report.run.memory import memory_panels, memory_tables
from kerasmem.report.run.timelines import (
    chosen,
    course_table,
    peak_table,
    timeline_columns,
    timeline_title,
)
from kerasmem.units import format_bytes

MOST_PLANS = 3
"""Number of memory plans on a page: the latest ones."""

MOST_POST_MORTEMS = 12
"""Maximum number of post-mortems on a page."""

ROUNDING_GLOSS = (
    "Rounding: excess of allocated over requested bytes, because the allocator uses "
    "fixed block sizes."
)
_MOST_LAYERS = 5


@dataclass(frozen=True)
class PostMortemView:
    """A post-mortem in the form shown on the page.

    `gloss` explains a category that needs an explanation. `record` is the complete
    post-mortem.
    """

    title: str
    cause: str
    fitting: str
    figures: list[Figure]
    peak: str
    layers: str
    gloss: str
    table: Table
    record: PostMortem


def post_mortem_views(
    post_mortems: Sequence[PostMortem],
) -> tuple[list[PostMortemView], str]:
    """Returns the post-mortems for a page, and a note about omitted ones."""
    views = [_post_mortem_view(one) for one in post_mortems[:MOST_POST_MORTEMS]]
    if len(views) == len(post_mortems):
        return views, ""
    return views, (
        f"Showing the first {len(views)} of {len(post_mortems):,}; all of them are in "
        "post_mortems.jsonl."
    )


def _post_mortem_view(post_mortem: PostMortem) -> PostMortemView:
    process = f", process {post_mortem.process}" if post_mortem.process else ""
    words = moment_words(post_mortem)
    return PostMortemView(
        title=f"{words[0].upper()}{words[1:]}{process}",
        cause=cause_sentence(post_mortem.cause),
        fitting=fitting_sentence(post_mortem),
        figures=_post_mortem_figures(post_mortem),
        peak=f"In use at the peak: {peak_words(post_mortem)}",
        layers=_post_mortem_layers(post_mortem),
        gloss=ROUNDING_GLOSS * any(p.category == "rounding" for p in post_mortem.parts),
        table=_post_mortem_table(post_mortem),
        record=post_mortem,
    )


def _post_mortem_figures(post_mortem: PostMortem) -> list[Figure]:
    cause = post_mortem.cause
    tensor = " ".join(filter(None, (cause.dtype, cause.shape)))
    sizes = (
        ("Requested", cause.requested_bytes, tensor),
        ("Largest free block", cause.largest_free_bytes, "at the failed allocation"),
        ("In use", cause.in_use_bytes, "at the failed allocation"),
        ("Limit", cause.limit_bytes, cause.device or ""),
        ("Variables", post_mortem.variable_bytes, "of the model and the optimizer"),
        ("Other memory in use", post_mortem.other_bytes, "between steps"),
    )
    return [
        Figure(label, format_bytes(size), detail)
        for label, size, detail in sizes
        if size is not None
    ]


def _post_mortem_layers(post_mortem: PostMortem) -> str:
    sizes = list(post_mortem.by_layer().items())
    layer_sizes = [
        f"{layer or NO_LAYER} {format_bytes(size)}"
        for layer, size in sizes[:_MOST_LAYERS]
    ]
    rest = len(sizes) - len(layer_sizes)
    more = f", and {rest:,} smaller" if rest > 0 else ""
    return f"By layer: {', '.join(layer_sizes)}{more}."


def _post_mortem_table(post_mortem: PostMortem) -> Table:
    parts = sorted(post_mortem.parts, key=lambda part: -part.nbytes)
    total = post_mortem.peak_bytes or 0
    rows = [
        (
            part.layer or NO_LAYER,
            part.category.replace("_", " "),
            format_bytes(part.nbytes),
            share_text(part.nbytes, total),
        )
        for part in parts[:MOST_ROWS]
    ]
    smaller = len(parts) - len(rows)
    how = "measured" if post_mortem.is_measured else "estimated"
    return Table(
        f"in use at the peak, by layer and category ({how})",
        ("layer", "category", "bytes", "share"),
        tuple(rows),
        texts=2,
        note=f"The {smaller:,} smallest rows are omitted." if smaller else "",
    )


def loss_panel(run: Run) -> Panel | None:
    """Returns the chart of the losses, or `None` if no loss was recorded."""
    lines = Lines()
    for x, record in _epochs(run):
        lines.add("loss", "peak", x, record.loss)
        lines.add("validation", "validation", x, record.val_loss)
    non_empty = lines.filled()
    return Panel("Loss", non_empty, unit="number") if non_empty else None


def loss_table(run: Run) -> Table:
    """Returns the losses of all epochs."""
    rows, note = evenly(
        [
            (f"{x:,}", number_text(record.loss, 4), number_text(record.val_loss, 4))
            for x, record in _epochs(run)
        ]
    )
    return Table("loss", ("epoch", "loss", "validation"), tuple(rows), 0, note)


MOST_METRICS = 12
"""Maximum number of metric charts, in the order of the first epoch's `logs`."""


def metric_panels(run: Run) -> list[Panel]:
    """Returns a chart of training and validation values for each metric."""
    charts: dict[str, Lines] = {}
    for x, record in _epochs(run):
        for name, value in record.metrics.items():
            base = name.removeprefix("val_")
            line, style = "training", "peak"
            if base != name:
                line = style = "validation"
            charts.setdefault(base, Lines()).add(line, style, x, value)
    return [
        Panel(name, lines.filled(), unit="number")
        for name, lines in [*charts.items()][:MOST_METRICS]
    ]


def _epochs(run: Run) -> list[tuple[int, GradientRecord | MemoryRecord]]:
    ends = [
        record
        for record in run.memory
        if record.batch is None and record.phase == "train" and record.process == 0
    ]
    records: Sequence[GradientRecord | MemoryRecord] = run.gradients or ends
    if all((r.loss, r.val_loss, r.metrics) == (None, None, {}) for r in records):
        return []
    numbers = continued(record.epoch for record in records)
    return [(n + 1, record) for n, record in zip(numbers, records, strict=True)]


MOST_FINDINGS = 5
"""Number of findings shown at the top. The others can be expanded."""


def page_content(run: Run) -> dict[str, Any]:
    """Returns the template variables. `packed` contains the data for the scripts."""
    of_training = (loss_panel(run), norm_panel(run.gradients))
    panels = [*filter(None, of_training), *metric_panels(run)]
    panels += memory_panels(run.memory)
    model = run.info.model if run.info else ""
    flow = gradient_flow(run.gradients, model)
    timelines, timelines_note = chosen(run.timelines)
    post_mortems, post_mortems_note = post_mortem_views(run.post_mortems)
    findings = gravest_first(run.findings)
    later = later_fits(run)
    packer = Packer()
    script_data = packer.pack(
        {
            "fits": packer.whole(later),
            "panels": packed_panels(panels, packer),
            "flow": {
                "paths": flow.paths,
                "columns": packer.whole(flow.columns),
                "measures": {n: packer.place(flow.measures[n]) for n in MEASURES},
            },
            "timelines": [timeline_columns(t, packer, model) for t in timelines],
        }
    )
    tables = [loss_table(run), norm_table(run.gradients, flow)]
    return {
        "packed": script_data,
        "findings": findings[:MOST_FINDINGS],
        "more_findings": findings[MOST_FINDINGS:],
        "later_fits": later,
        "panels": panels,
        "epoch_tables": [*tables, *memory_tables(run.memory)],
        "batches": sum(record.batch is not None for record in run.memory),
        "flow": flow,
        "variable_table": variable_table(flow),
        "timelines": [
            (timeline_title(t), t, [peak_table(t, model), course_table(t)])
            for t in timelines
        ],
        "timelines_note": timelines_note,
        "plans": [(plan.sentences(), plan.table()) for plan in run.plans[-MOST_PLANS:]],
        "post_mortems": post_mortems,
        "post_mortems_note": post_mortems_note,
        "remedy_words": remedy_words,
    }


STYLES = ("run.css", "post_mortems.css")
SCRIPTS = (
    "controls.js",
    "colors.js",
    "heatmap.js",
    "moments.js",
    "view.js",
    "stack_chart.js",
    "address_chart.js",
    "lanes.js",
    "input.js",
    "readout.js",
    "blocks.js",
    "timeline_parts.js",
    "timeline.js",
    "main.js",
)


def write_run_page(run: Run, path: str | Path) -> None:
    """Writes the page of a run atomically."""
    write_html(path, run_page_html(run))


def run_page_html(run: Run) -> str:
    """Returns the page of a run as HTML. All text is escaped."""
    return html_page(
        "kerasmem.report.run",
        SCRIPTS,
        STYLES,
        run=run,
        title=title(run),
        headline=headline(run),
        **page_content(run),
    )


def notebook_html(run: Run, height: int = 720) -> str:
    """Returns the page in a sandboxed iframe for a notebook.

    The content of the iframe cannot access the notebook. `height` is in CSS pixels.
    """
    page = html.escape(run_page_html(run), quote=True)
    return (
        f'<iframe title="kerasmem: {html.escape(title(run), quote=True)}" '
        f'sandbox="allow-scripts" width="100%" height="{height}" '
        f'style="border:0" srcdoc="{page}"></iframe>'
    )
