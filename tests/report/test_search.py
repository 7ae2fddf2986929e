"""What a search tried is shown: every trial, the front, what was taken and left out."""

import re

import pytest
from rich.console import Console

from kerasmem.records import ModelFigures, SearchReport, SearchTrial
from kerasmem.report.compression import Page, render_page, search_table

pytestmark = pytest.mark.one_backend


def trial(name, size, drop, **rest):
    costs = {"file_bytes": size, "flops": 2e6}
    return SearchTrial(name, (), 0, costs, size / 2048, drop, 0.001, **rest)


REPORT = SearchReport(
    target={"file_bytes": 2048.0},
    max_drop=0.01,
    metric="accuracy",
    samples=400,
    trials=(
        trial("unchanged", 8192, 0.0, on_front=True),
        trial("int8", 2560, 0.03),
        trial("prune, int8", 1536, 0.002, on_front=True),
    ),
    chosen=2,
    left_out={"channels": "nothing <b> to remove"},
    stopped="all that was planned was tried",
)


def test_the_table_has_every_trial_and_the_one_that_was_taken():
    console = Console(width=140, force_terminal=True, color_system="standard")
    with console.capture() as capture:
        console.print(search_table(REPORT))
    text = capture.get()
    title = re.sub(r"\x1b\[[0-9;]*m", "", " ".join(text.split()))
    assert "Search for file_bytes up to 2.00 KiB, a drop up to 0.01; evaluated" in title
    rows = [line for line in text.splitlines() if "±" in line]
    assert len(rows) == 3
    assert "1.50 KiB" in rows[2]
    assert "2,000,000" in rows[2]
    assert "+0.0020 ± 0.0010" in rows[2]
    assert ["yes" in row for row in rows] == [True, False, True]
    assert ["\x1b[1m" in row for row in rows] == [False, False, True]


def test_the_page_has_the_trials_and_what_was_left_out():
    figures = ModelFigures(8192, 2000, 500, 480)
    html = render_page(Page("A search", {"before": figures}, search=REPORT))
    assert html.count("±") == 3
    assert '<tr class="strong"><th scope="row" class="text">prune, int8</th>' in html
    assert "left out: nothing &lt;b&gt; to remove" in html


def test_a_page_without_a_search_tells_of_none():
    html = render_page(Page("A model", {"before": ModelFigures(8192, 2000, 500, 480)}))
    assert '<h2 id="search">' not in html
