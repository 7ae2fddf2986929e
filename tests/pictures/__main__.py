"""Take every picture of the documentation: `python -m tests.pictures`.

A real training is watched, a real model compressed; their pages are opened in Chromium
at 1400 and 390 pixels, light and dark. `--only run` takes those of one page.
"""

import argparse
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory

from tests.pictures.camera import Camera
from tests.pictures.pages import (
    compression_page,
    distillation_page,
    notebook_page,
    readme_page,
    run_page,
    site_page,
)

ROOT = Path(__file__).parents[2]
PAGES = {
    "run": run_page,
    "compression": compression_page,
    "distillation": distillation_page,
    "site": site_page,
    "notebook": notebook_page,
    "readme": readme_page,
}

MIDDLES = {"notebook": "article img"}
"""What is in the middle of pictures that do not begin at the top."""


def take(only: str | None, out: Path) -> Iterator[Path]:
    """Yield each picture's path when it is written."""
    with TemporaryDirectory() as folder, Camera(out) as camera:
        for name, make in PAGES.items():
            if only in (None, name):
                page = make(Path(folder))
                yield from camera.page(name, page, MIDDLES.get(name))
                if name == "run":
                    yield from camera.part("readme", page, "#timeline", 552)


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.pictures")
    parser.add_argument("--only", choices=PAGES, help="one page's pictures")
    parser.add_argument("--out", type=Path, default=ROOT / "docs" / "images")
    arguments = parser.parse_args()
    for path in take(arguments.only, arguments.out):
        print(f"{path}: {path.stat().st_size / 1024:.0f} KiB")  # noqa: T201


if __name__ == "__main__":
    main()
