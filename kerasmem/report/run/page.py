"""The page of a watched run: one HTML file, no network, nothing of it trusted."""

import base64
import hashlib
import html
from pathlib import Path

import jinja2
from markupsafe import Markup

from kerasmem.files.atomic import replacing
from kerasmem.records import Run
from kerasmem.report.run.content import page_content
from kerasmem.report.run.headline import headline, title

_HERE = Path(__file__).parent
STYLES = ("page.css", "charts.css", "post_mortems.css", "print.css")
# One scope, in this order: each file uses only what stands above it.
SCRIPTS = (
    "elements.js",
    "text.js",
    "unpack.js",
    "theme.js",
    "ticks.js",
    "tooltip.js",
    "table.js",
    "line_frame.js",
    "lines.js",
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
    page = run_page_html(run)
    with replacing(path) as temporary:
        temporary.write_text(page, encoding="utf-8")


def run_page_html(run: Run) -> str:
    """Return the page of a run; all text from the run in it is escaped.

    Its policy lets nothing be loaded from anywhere, and no script run but ours.
    """
    environment = jinja2.Environment(
        loader=jinja2.PackageLoader("kerasmem.report.run", ""),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    style = "".join(_read(name) for name in STYLES)
    script = f'"use strict";(() => {{\n{"".join(map(_read, SCRIPTS))}}})();\n'
    template = environment.get_template("page.html.j2")
    return template.render(
        run=run,
        title=title(run),
        headline=headline(run),
        style=Markup(style),
        script=Markup(script),
        style_hash=_hash(style),
        script_hash=_hash(script),
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


def _read(name: str) -> str:
    return (_HERE / name).read_text("utf-8")


def _hash(text: str) -> str:
    digest = hashlib.sha256(text.encode("utf-8")).digest()
    return f"sha256-{base64.b64encode(digest).decode('ascii')}"
