"""The page of a run holds what was recorded, loads nothing, and can be read aloud."""

import base64
import hashlib
import html
import itertools
import os
import re
from dataclasses import replace
from pathlib import Path

import pytest

import kerasmem.report.compression
import kerasmem.report.page
import kerasmem.report.run
from kerasmem.errors import OutputError
from kerasmem.files.read_run import read_run
from kerasmem.records import Finding, Run
from kerasmem.report import compression
from kerasmem.report.page import html as html_
from kerasmem.report.run import notebook_html, run_page_html, write_run_page
from kerasmem.report.run import page as run_page
from tests.report.packed import packed
from tests.report.runs import EVIL, memory_records, small_run
from tests.report.test_page import Tags

pytestmark = pytest.mark.one_backend


@pytest.fixture(scope="module")
def page():
    return run_page_html(small_run())


@pytest.fixture(scope="module")
def tags(page):
    return Tags(page)


def test_the_headline_says_what_counts(page):
    first = page.partition("</dl>")[0]
    figures = dict(re.findall(r"<dt>([^<]*)</dt><dd>([^<]*)</dd>", first))
    assert figures == {
        "Out of memory": "2 times",
        "Parameters": "1,234,567",
        "Device peak": "1.27 GiB",
        "Host peak": "1.08 GiB",
        "Timeline peak": "2.29 KiB",
        "Gradient norm, last": figures["Gradient norm, last"],
        "Nonfinite gradients": "3",
    }


def test_findings_and_what_could_not_be_read_are_there_in_words(page):
    assert "<strong>leak</strong>" in page
    assert "The last line of memory.jsonl is cut off" in page


def finding(number, severity="warning"):
    return Finding("leak", f"Leak {number}.", number, None, "MemoryMonitor", severity)


def test_the_gravest_findings_come_first_and_five_stand_before_the_charts():
    severities = (
        "note",
        "warning",
        "warning",
        "error",
        "warning",
        "warning",
        "warning",
    )
    found = tuple(finding(n, severity) for n, severity in enumerate(severities))
    html = run_page_html(Run(findings=found))
    before, _, folded = html.partition("<summary>and 2 more</summary>")
    assert re.findall(r"<p>Leak (\d)\.", before) == ["3", "1", "2", "4", "5"]
    assert re.findall(r"<p>Leak (\d)\.", folded) == ["6", "0"]
    assert '<span class="severity">error</span>' in before
    five = run_page_html(Run(findings=found[:5]))
    assert "more</summary>" not in five


def test_the_title_is_the_runs_folder_and_the_model_stands_below():
    page = run_page_html(replace(small_run(), name="train-20260301"))
    assert "<h1>train-20260301</h1>" in page
    assert "<title>train-20260301 · " in page
    assert "model tower · tensorflow backend" in page
    assert "<h1>tower</h1>" in run_page_html(small_run())


def test_a_folder_whose_name_is_no_text_becomes_a_page(tmp_path):
    folder = Path(os.fsdecode(os.fsencode(tmp_path) + b"/run-\xff"))
    folder.mkdir()
    line = small_run().findings[0].to_json()
    (folder / "findings.jsonl").write_text(line)
    write_run_page(read_run(folder), tmp_path / "page.html")
    assert "<h1>run-?</h1>" in (tmp_path / "page.html").read_text(encoding="utf-8")


@pytest.mark.parametrize(
    ("name", "source", "words"),
    [
        ("bfc_cpu_allocator_for_gpu", "profiler", "TensorFlow's allocator (CPU)"),
        ("GPU_1_bfc", "profiler", "TensorFlow's allocator (GPU:1)"),
        ("cuda:0", "snapshot", "torch's allocator (GPU:0)"),
        ("XLA", "buffer assignment", "XLA's plan"),
        ("mine", "profiler", "mine"),
        ("GPU_0_bfc of process 2", "x", "TensorFlow's allocator (GPU:0) of process 2"),
    ],
)
def test_an_allocator_is_told_in_words_its_own_name_in_small(name, source, words):
    (timeline, *_) = small_run().timelines
    timeline = replace(timeline, allocator=name, source=source)
    page = html.unescape(run_page_html(Run(timelines=(timeline,))))
    assert f"<h3>{words}, step 3" in page
    assert f'<dd class="soft">{words}, of 5 blocks</dd>' in page
    if name not in words:
        assert f'<small class="soft">{name}</small></h3>' in page


def test_a_run_without_findings_says_so():
    assert "No findings." in run_page_html(Run())


def test_every_chart_has_its_numbers_in_a_table(page):
    for title in (
        "loss",
        "devices, at the end of every epoch",
        "host, at the end of every epoch",
        "in use at the peak, 2.04 KiB in all",
        "bytes in use by category over the window",
        "global L2 norm of the gradient",
        "gradient of every variable, over the sampled steps",
    ):
        assert f"<summary>Table: {title}</summary>" in page


def test_text_from_outside_is_escaped(page, tags):
    assert "onerror=" in html.unescape(page)
    assert EVIL not in page
    assert "<img" not in page
    assert tags.attributes("img") == []
    assert len(tags.attributes("script")) == 2


def test_names_reach_the_scripts_whole(page):
    kinds = packed(page)["timelines"][1]["kinds"]
    assert kinds[0][:2] == [EVIL, EVIL]


def test_the_page_loads_nothing_and_runs_nothing_but_its_own(page, tags):
    loading = [a for _, a in tags.found if "src" in a or "href" in a]
    assert [a["href"] for a in loading] == ["data:,", "#main"]
    assert not re.search(r"url\(|@import|https?://(?!www\.w3\.org/2000/svg)", page)
    (policy,) = [a["content"] for a in tags.attributes("meta") if "http-equiv" in a]
    assert policy.startswith("default-src 'none';")
    for tag in ("script", "style"):
        text = re.findall(rf"<{tag}>(.*?)</{tag}>", page, re.DOTALL)[-1]
        digest = base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()
        assert f"{tag}-src 'sha256-{digest}'" in policy


def test_the_page_is_well_formed(tags):
    assert tags.open == []
    assert tags.attributes("html") == [{"lang": "en"}]
    assert all("scope" in attributes for attributes in tags.attributes("th"))
    ids = [a["id"] for _, a in tags.found if "id" in a]
    assert len(ids) == len(set(ids))


def test_every_chart_has_a_name_and_words(tags):
    ids = {a["id"] for _, a in tags.found if "id" in a}
    charts = [a for _, a in tags.found if "lines" in (a.get("class") or "").split()]
    assert len(charts) == 4  # the loss, the device, the host, the norm
    for chart in charts:
        assert chart["role"] == "img"
        assert {chart["aria-labelledby"], chart["aria-describedby"]} <= ids
    regions = [a for _, a in tags.found if a.get("role") == "group"]
    assert all(a["aria-label"] and a["tabindex"] == "0" for a in regions)


def test_headings_come_in_order(tags):
    levels = [int(tag[1]) for tag, _ in tags.found if re.fullmatch("h[1-6]", tag)]
    assert levels[0] == 1
    assert levels.count(1) == 1
    assert all(b <= a + 1 for a, b in itertools.pairwise(levels))


def luminance(color):
    channels = [int(color[i : i + 2], 16) / 255 for i in (1, 3, 5)]
    linear = [
        c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in channels
    ]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def contrast(one, other):
    high, low = sorted((luminance(one), luminance(other)), reverse=True)
    return (high + 0.05) / (low + 0.05)


@pytest.mark.parametrize("theme", [0, 1], ids=["light", "dark"])
def test_text_stands_out_from_what_is_behind_it(page, theme):
    found = re.findall(r"--([\w-]+): light-dark\((#\w{6}), (#\w{6})\)", page)
    color = {name: pair[theme] for name, *pair in found}
    for ground in ("ground", "panel", "raised"):
        for text in ("ink", "soft", "accent", "alarm"):
            assert contrast(color[text], color[ground]) >= 4.5, (text, ground)
    assert contrast(color["ground"], color["accent"]) >= 4.5  # a pressed button
    # What stands for a quantity without being text needs 3 against the ground.
    for line in ("accent", "current", "soft"):
        assert contrast(color[line], color["panel"]) >= 3, line


def test_every_script_and_style_is_on_the_page(page):
    for room, listed in (
        (kerasmem.report.page, {*html_.SCRIPTS, *html_.STYLES}),
        (kerasmem.report.run, {*run_page.SCRIPTS, *run_page.STYLES}),
        (kerasmem.report.compression, {*compression.SCRIPTS, *compression.STYLES}),
    ):
        there = {file.name for file in Path(room.__path__[0]).iterdir()}
        assert {name for name in there if name.endswith((".js", ".css"))} == listed


def test_the_same_run_is_the_same_page(page):
    assert run_page_html(small_run()) == page


def test_what_was_not_watched_is_left_out():
    html = run_page_html(Run(memory=memory_records(1)))
    assert "Host memory" in html
    assert 'id="timeline"' not in html
    assert 'id="gradients"' not in html
    assert "Global L2 norm" not in html
    assert '<h3 id="panel-0">Device memory, GPU:0</h3>' in html  # no loss was told


def test_what_is_missing_of_a_timeline_is_told():
    (timeline, *_) = small_run().timelines
    assert "events are not shown" not in run_page_html(Run(timelines=(timeline,)))
    gapped = replace(timeline, lost_events=1234)
    assert (
        "1,234 events are not shown because of a gap in the profiler"
        in run_page_html(Run(timelines=(gapped,)))
    )


def test_a_notebook_gets_the_page_in_a_frame_that_cannot_reach_it(page):
    frame = notebook_html(small_run())
    (attributes,) = Tags(frame).attributes("iframe")
    assert attributes["sandbox"] == "allow-scripts"
    assert attributes["title"] == "kerasmem: tower"
    assert attributes["srcdoc"] == page


def test_a_page_that_cannot_be_written_leaves_the_old_one(tmp_path, monkeypatch):
    path = tmp_path / "page.html"
    path.write_text("old")

    def no_space(*arguments, **options):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(type(path), "write_text", no_space)
    with pytest.raises(OutputError, match="No space left on device"):
        write_run_page(Run(memory=memory_records(1)), path)
    assert path.read_text() == "old"
