"""The site has every guide and every public name."""

import re
from pathlib import Path

import pytest
import yaml

from kerasmem import public

pytestmark = pytest.mark.one_backend

ROOT = Path(__file__).parents[2]
REFERENCE = [*(ROOT / "docs" / "api").glob("*.md"), ROOT / "docs" / "allocator.md"]
API = "\n".join(page.read_text() for page in REFERENCE)
DOCUMENTED = set(re.findall(r"^::: kerasmem\.public\.([\w.]+)$", API, re.MULTILINE))
ROOMS = ("callbacks", "distillation", "errors", "layers", "memory", "optimizers")


def public_names():
    plain = {name for name in public.__all__ if name not in ROOMS}
    return plain | {
        f"{room}.{name}" for room in ROOMS for name in getattr(public, room).__all__
    }


def pages(part):
    """Yield the paths of a navigation."""
    if isinstance(part, str):
        yield part
    elif isinstance(part, dict):
        yield from (page for inner in part.values() for page in pages(inner))
    else:
        yield from (page for inner in part for page in pages(inner))


def test_the_reference_has_every_public_name_and_no_other():
    assert public_names() == DOCUMENTED
    assert len(DOCUMENTED) > 60


def test_every_page_is_in_the_navigation_once():
    config = yaml.safe_load((ROOT / "mkdocs.yml").read_text())
    docs = ROOT / "docs"
    sources = [*docs.rglob("*.md"), *docs.rglob("*.ipynb")]
    assert sorted(pages(config["nav"])) == sorted(
        page.relative_to(docs).with_suffix(".md").as_posix() for page in sources
    )


def test_nothing_of_the_site_comes_from_elsewhere():
    theme = yaml.safe_load((ROOT / "mkdocs.yml").read_text())["theme"]
    assert theme["font"] is False
