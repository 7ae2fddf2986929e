"""The README is short, its figures are measured, its pictures and links are there."""

import re
from pathlib import Path

import pytest

pytestmark = pytest.mark.one_backend

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text()
MOST_LINES = 150
MOST_LINES_OF_A_JOB = 8
MOST_BYTES_OF_PICTURES = 1_500_000
FIGURE = re.compile(
    r"(?<![\w.])(\d[\d,.]*)(?: |&nbsp;)?(MiB|KiB|us|%|bytes)(?!\w)"
    r"|\b(\d+(?:,\d{3})+|0\.\d{3,})\b"
)
"""A number with a unit, one of five digits, or a share of three and more."""
JOBS = re.findall(r"```python\n(.*?)```", README, re.DOTALL)
TABLES = "\n".join(re.findall(r"^\|.*$", README, re.MULTILINE))
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
LINK = re.compile(r"(?:\]\(|srcset=\"|src=\")(?!https?:|#)([^)\"#]+)(?:#([^)\"]*))?")


def figures(text):
    """Return every figure of a text, without its unit."""
    return {(one[0] or one[2]).strip(".,") for one in FIGURE.findall(text)}


def test_it_is_short():
    assert len(README.splitlines()) <= MOST_LINES
    assert len(JOBS) == 5  # what the jobs need, and four jobs
    assert max(len(job.splitlines()) for job in JOBS[1:]) <= MOST_LINES_OF_A_JOB


def test_every_figure_of_its_tables_is_among_the_benchmarks():
    shown = figures(TABLES) - {"80"}  # how much is pruned, not what came of it
    assert len(shown) > 15
    pages = [ROOT / "docs" / name for name in ("benchmarks.md", "peers.md")]
    measured = figures("\n".join(page.read_text() for page in pages))
    assert shown - measured == set()


def test_a_figure_is_seen_with_its_unit():
    text = (
        "from 1.30&nbsp;MiB to 112 KiB, 84.51 % at 70,990; 0.8985 in 3.15 and 4 steps"
    )
    assert figures(text) == {"1.30", "112", "84.51", "70,990", "0.8985"}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_local_link_leads_somewhere(page):
    lost = [
        target
        for target, anchor in LINK.findall(page.read_text())
        if not (page.parent / target).exists()
    ]
    assert lost == []


def test_its_picture_is_there_in_light_and_dark_and_pictures_are_small():
    shown = set(re.findall(r"docs/images/([\w-]+\.png)", README))
    assert shown == {"readme-dark.png", "readme-light.png"}
    files = list((ROOT / "docs" / "images").glob("*.png"))
    assert shown <= {file.name for file in files}
    assert sum(file.stat().st_size for file in files) < MOST_BYTES_OF_PICTURES


def test_the_fields_terms_are_in_it():
    for term in (
        "knowledge distillation",
        "gradient checkpointing",
        "quantization-aware training",
        "pruning",
        "quantization",
    ):
        assert term in README.lower()
