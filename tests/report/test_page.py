"""The page holds what was measured, needs no network and can be read aloud."""

import re
from html.parser import HTMLParser

import pytest

from kerasmem.errors import OutputError
from kerasmem.records import (
    DeviceReading,
    GradientRecord,
    HostReading,
    MemoryRecord,
    ModelFigures,
    Run,
    WeightChange,
)
from kerasmem.report.compression import Page, render_page, write_page
from kerasmem.report.run import run_page_html
from kerasmem.report.run.gradients import norm_panel
from kerasmem.units import MIB
from tests.report.packed import packed

pytestmark = pytest.mark.one_backend

MODELS = {
    "before": ModelFigures(4096, 2000, 500, 480),
    "after": ModelFigures(1024, 500, 500, 96),
}
CHANGES = (
    WeightChange("a", "a/kernel", "prune", True, "<script>alert(1)</script>", 400, 40),
    WeightChange("a", "a/bias", "prune", False, "a bias", 40, 40),
)
MEMORY = tuple(
    MemoryRecord(
        epoch,
        None,
        (DeviceReading("GPU:0", 5 * MIB, peak * MIB, True),),
        HostReading(7 * MIB, 9 * MIB, "kernel"),
    )
    for epoch, peak in enumerate((64, 96))
)
GRADIENTS = (GradientRecord(0, 10, 2.5, 8.0, 0), GradientRecord(1, 10, 1.25, 4.0, 0))


@pytest.fixture(scope="module")
def full():
    return render_page(Page("A run", MODELS, CHANGES, {"command": "x", "seed": 7}))


@pytest.fixture(scope="module")
def run_page():
    return run_page_html(Run(memory=MEMORY, gradients=GRADIENTS))


class Tags(HTMLParser):
    """Every opening tag with its attributes, and those that were never closed."""

    VOID = ("meta", "link", "br", "wbr", "img", "hr")

    def __init__(self, html):
        super().__init__()
        self.found, self.open = [], []
        self.feed(html)

    def handle_starttag(self, tag, attributes):
        self.found.append((tag, dict(attributes)))
        if tag not in self.VOID:
            self.open.append(tag)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def attributes(self, tag):
        return [attributes for name, attributes in self.found if name == tag]


def test_every_figure_stands_in_the_table(full):
    cells = re.findall(r"<td[^>]*>([^<]*)</td>", full)
    for text in ("4.00 KiB", "1.00 KiB", "4.00x", "480", "96", "5.00x", "measured"):
        assert text in cells


def test_every_weight_is_listed_and_counted(full):
    assert "1 changed, 1 unchanged" in full
    assert "a/<wbr>kernel" in full
    assert "skipped: a bias" in full


def test_a_weight_that_two_techniques_met_counts_once():
    found = [
        WeightChange("a", weight, technique, weight == "a/kernel", "x", 40, 10)
        for technique in ("prune", "quantize")
        for weight in ("a/kernel", "a/bias", "a/Bias")
    ]
    page = render_page(Page("A run", MODELS, tuple(found)))
    assert "1 changed, 2 unchanged" in page


def test_text_from_outside_is_escaped(full):
    assert "<script>alert" not in full
    assert len(Tags(full).attributes("script")) == 2  # ours, and its numbers
    assert "&lt;script&gt;alert(1)&lt;/<wbr>script&gt;" in full


def test_the_page_needs_nothing_from_the_network_and_runs_nothing_else(full):
    tags = Tags(full)
    loading = [a for _, a in tags.found if "src" in a or "href" in a]
    assert [a["href"] for a in loading] == ["data:,", "#main"]
    assert not re.search(r"url\(|@import|https?://(?!www\.w3\.org/2000/svg)", full)
    (policy,) = [a["content"] for a in tags.attributes("meta") if "http-equiv" in a]
    assert policy.startswith("default-src 'none';")


def test_the_page_is_well_formed_and_can_be_read_aloud(full):
    tags = Tags(full)
    assert tags.open == []
    assert tags.attributes("html") == [{"lang": "en"}]
    assert all("scope" in attributes for attributes in tags.attributes("th"))
    ids = [a["id"] for _, a in tags.found if "id" in a]
    assert len(ids) == len(set(ids))


def test_the_charts_of_a_run_can_be_read_aloud(run_page):
    tags = Tags(run_page)
    ids = {a["id"] for _, a in tags.found if "id" in a}
    images = [a for a in tags.attributes("div") if a.get("role") == "img"]
    assert len(images) >= 3  # the device, the host, the norm
    for image in images:
        assert {image["aria-labelledby"], image["aria-describedby"]} <= ids
    assert "peak: from 64.0 MiB to 96.0 MiB, at most 96.0 MiB." in run_page


def test_every_chart_has_its_numbers_in_a_table(run_page):
    for title in (
        "devices, at the end of every epoch",
        "host, at the end of every epoch",
        "global L2 norm of the gradient",
    ):
        assert f"<summary>Table: {title}</summary>" in run_page


def test_the_browser_gets_the_numbers_of_every_epoch(run_page):
    norm, device, host = packed(run_page)["panels"]
    peaks = {line["name"]: line["y"] for line in device["lines"]}
    assert peaks == {"peak": [64 * MIB, 96 * MIB], "in use": [5 * MIB, 5 * MIB]}
    assert [line["x"] for line in host["lines"]] == [[1, 2], [1, 2]]
    assert {line["name"]: line["y"] for line in norm["lines"]} == {
        "mean": [2.5, 1.25],
        "largest": [8.0, 4.0],
    }


def test_the_page_says_how_to_do_it_again(full):
    for text in ("command", "seed", "<dd>7</dd>", "keras", "backend"):
        assert text in full


def test_the_same_page_is_the_same_bytes(full):
    page = Page("A run", MODELS, CHANGES, {"command": "x", "seed": 7})
    assert render_page(page) == full


def test_what_is_empty_is_left_out():
    html = render_page(Page("Nothing"))
    assert "<table" not in html
    assert "<svg" not in html


def test_the_peak_is_that_of_the_ends_of_epochs_of_training():
    within = MemoryRecord(0, 3, (), HostReading(1, 1, "kernel"))
    judged = MemoryRecord(1, None, (), HostReading(1, 1, "kernel"), phase="validation")
    run = Run(memory=(within, *MEMORY, judged))
    _, host = packed(run_page_html(run))["panels"]
    lines = {line["name"]: line["y"] for line in host["lines"]}
    assert lines["peak"] == [9 * MIB, 9 * MIB]
    assert lines["validation peak"] == lines["by batch"] == [1]


def test_an_epoch_without_a_finite_norm_is_marked_and_has_no_words():
    lost = GradientRecord(2, 10, float("nan"), float("nan"), 10)
    assert norm_panel([]) is None
    panel = norm_panel([*GRADIENTS, lost])
    assert panel.words == (
        "mean: from 2.5 to 1.25, at most 2.5. largest: from 8 to 4, at most 8."
    )
    assert panel.marks == (3,)
    assert "A cross marks an epoch with nonfinite gradients." in panel.notes
    assert len(norm_panel(GRADIENTS).notes) == 1


def test_a_page_that_cannot_be_written_leaves_the_old_one(tmp_path, monkeypatch):
    path = tmp_path / "page.html"
    path.write_text("old")

    def no_space(*arguments, **options):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(type(path), "write_text", no_space)
    with pytest.raises(OutputError, match="No space left on device"):
        write_page(path, Page("New"))
    assert path.read_text() == "old"
    assert list(tmp_path.iterdir()) == [path]
