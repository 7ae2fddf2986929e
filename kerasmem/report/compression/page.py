"""The page of a compression."""

import importlib.metadata
import platform
from pathlib import Path

import keras

from kerasmem.report.compression.content import Page, page_content
from kerasmem.report.page.html import html_page, write_html

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
