"""Chromium as a camera: pages at two widths, in both themes, as small PNG files."""

import io
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Self

from PIL import Image
from playwright.sync_api import sync_playwright

from tests.report.browser import chromium

WIDTHS = {1400: 1000, 390: 844}
"""Width of the window and its height, in CSS pixels."""
THEMES = ("light", "dark")
PHONE = 390
COLORS = 256
"""Of a picture's palette: charts and letters need no more, and files stay small."""


class Camera:
    """A browser that writes pictures into a folder.

    Args:
        out: folder for the pictures, made if it is missing.
    """

    def __init__(self, out: Path) -> None:
        self.out = out
        out.mkdir(parents=True, exist_ok=True)

    def __enter__(self) -> Self:
        self._api = sync_playwright().start()
        # Inside of a container there is no other sandbox, and the pages are our own.
        self._browser = self._api.chromium.launch(
            executable_path=chromium(), args=["--no-sandbox"]
        )
        return self

    def __exit__(self, *_: object) -> None:
        self._browser.close()
        self._api.stop()

    def page(self, name: str, path: Path, at: str | None = None) -> Iterator[Path]:
        """Take a page at each width, in each theme.

        Args:
            name: of the picture.
            path: of the page.
            at: selector of what is in the middle; None for the page's beginning.
        """
        for width in WIDTHS:
            for theme in THEMES:
                page = self._opened(path, width, theme)
                if at is not None:
                    part = page.locator(at).first
                    part.evaluate("part => part.scrollIntoView({ block: 'center' })")
                    page.wait_for_timeout(500)  # a heading moves into its bar
                yield self._write(f"{name}-{width}-{theme}", page.screenshot())
                page.close()

    def part(self, name: str, path: Path, selector: str, height: int) -> Iterator[Path]:
        """Take one part of a page in each theme, from its top on.

        Args:
            name: of the picture.
            path: of the page.
            selector: of the part.
            height: of the picture, in CSS pixels.
        """
        for theme in THEMES:
            page = self._opened(path, 1100, theme)
            box = page.locator(selector).bounding_box()
            clip = {**box, "height": height, "x": 0, "width": 1100}
            picture = page.screenshot(clip=clip, full_page=True)
            yield self._write(f"{name}-{theme}", picture)
            page.close()

    def _opened(self, path: Path, width: int, theme: str) -> Any:
        size = {"width": width, "height": WIDTHS.get(width, 900)}
        phone = width == PHONE
        page = self._browser.new_page(
            viewport=size, color_scheme=theme, is_mobile=phone, has_touch=phone
        )
        page.goto(path.as_uri())
        page.wait_for_load_state("networkidle")
        page.wait_for_timeout(300)  # fonts, and the charts' first drawing
        return page

    def _write(self, name: str, picture: bytes) -> Path:
        path = self.out / f"{name}.png"
        image = Image.open(io.BytesIO(picture)).convert("RGB")
        image.quantize(
            COLORS, Image.Quantize.MAXCOVERAGE, dither=Image.Dither.NONE
        ).save(path, optimize=True)
        return path
