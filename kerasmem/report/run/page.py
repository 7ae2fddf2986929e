"""The page of a watched run."""

import html
from pathlib import Path

from kerasmem.records import Run
from kerasmem.report.page.html import html_page, write_html
from kerasmem.report.run.content import page_content
from kerasmem.report.run.headline import headline, title

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
    """Write the page of a run to `path`, whole or not at all.

    Raises:
        OutputError: if it cannot be written; what was there before stays.
    """
    write_html(path, run_page_html(run))


def run_page_html(run: Run) -> str:
    """Return the page of a run; all text from the run in it is escaped."""
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
    """Return the page in a frame of its own, for a notebook's output.

    Nothing in the frame can reach the notebook around it.

    Args:
        run: what was recorded.
        height: of the frame, in CSS pixels.
    """
    page = html.escape(run_page_html(run), quote=True)
    return (
        f'<iframe title="kerasmem: {html.escape(title(run), quote=True)}" '
        f'sandbox="allow-scripts" width="100%" height="{height}" '
        f'style="border:0" srcdoc="{page}"></iframe>'
    )
