"""Puts a page together: one HTML file, no network, nothing of its content trusted."""

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
# One scope, in this order: each file uses only what stands above it.
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
    """Return a page as HTML; all text in it is escaped.

    Its policy lets nothing be loaded from anywhere, and no script run but ours.

    Args:
        room: package with the page's own files, among them `page.html.j2`.
        scripts: names of its own scripts, which come after those of every page.
        styles: names of its own styles, likewise.
        **content: variables of the template: `title` (text), `panels` (charts over
            the epochs), `packed` (text that `start.js` reads), and those of its own.
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
    """Write a page to `path`, whole or not at all.

    Raises:
        OutputError: if it cannot be written; what was there before stays.
    """
    with replacing(path) as temporary:
        temporary.write_text(html, encoding="utf-8")


def _breakable(text: str) -> Markup:
    return Markup(re.sub("([/_])", r"\1<wbr>", str(escape(text))))


def _joined(package: str, names: Sequence[str]) -> str:
    return "".join(files(package).joinpath(name).read_text("utf-8") for name in names)


def _hash(text: str) -> str:
    digest = hashlib.sha256(text.encode("utf-8")).digest()
    return f"sha256-{base64.b64encode(digest).decode('ascii')}"
