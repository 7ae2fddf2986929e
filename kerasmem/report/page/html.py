"""Builds self-contained HTML pages from untrusted content."""

import base64
import hashlib
import re
from collections.abc import Sequence
from importlib.resources import files
from pathlib import Path

import jinja2
from markupsafe import Markup, escape

from kerasmem.files.atomic import replacing

_ENGINE = "kerasmem.report.page"
STYLES = ("page.css", "charts.css", "print.css")
# All files share one scope. Each file uses only definitions of preceding files.
SCRIPTS = (
    "elements.js",
    "text.js",
    "unpack.js",
    "theme.js",
    "ticks.js",
    "tooltip.js",
    "table.js",
    "frame.js",
    "lines.js",
    "start.js",
)


def html_page(
    room: str, scripts: Sequence[str], styles: Sequence[str], **content: object
) -> str:
    """Returns a page as HTML. All text is escaped.

    The content security policy blocks external resources and all scripts except those
    of kerasmem. The package `room` contains the files of the page, including
    `page.html.j2`. Its scripts and styles follow the shared ones. `content` contains
    the template variables, including `title`, `panels` and `packed` (text for
    `start.js`).
    """
    loaders = [jinja2.PackageLoader(package, "") for package in (room, _ENGINE)]
    environment = jinja2.Environment(
        loader=jinja2.ChoiceLoader(loaders),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters["breakable"] = _breakable
    style = _joined(_ENGINE, STYLES) + _joined(room, styles)
    code = _joined(_ENGINE, SCRIPTS) + _joined(room, scripts)
    script = f'"use strict";(() => {{\n{code}}})();\n'
    return environment.get_template("page.html.j2").render(
        style=Markup(style),
        script=Markup(script),
        style_hash=_hash(style),
        script_hash=_hash(script),
        **content,
    )


def write_html(path: str | Path, html: str) -> None:
    """Writes a page atomically."""
    with replacing(path) as temporary:
        temporary.write_text(html, encoding="utf-8")


def _breakable(text: str) -> Markup:
    return Markup(re.sub("([/_])", r"\1<wbr>", str(escape(text))))


def _joined(package: str, names: Sequence[str]) -> str:
    return "".join(files(package).joinpath(name).read_text("utf-8") for name in names)


def _hash(text: str) -> str:
    digest = hashlib.sha256(text.encode("utf-8")).digest()
    return f"sha256-{base64.b64encode(digest).decode('ascii')}"
