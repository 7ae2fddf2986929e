"""Out-of-memory on the page of a run and in the terminal, to the figure."""

import re
from dataclasses import replace

import pytest
from rich.console import Console

from kerasmem.records import Run
from kerasmem.report.run import run_page_html
from kerasmem.report.run.headline import post_mortem_table
from kerasmem.report.run.page import MOST_POST_MORTEMS, post_mortem_views
from tests.report.runs import memory_records, post_mortems
from tests.report.test_page import Tags

pytestmark = pytest.mark.one_backend


def text_of(html):
    return re.sub(r"\s+", " ", re.sub(r"<[^>]*>", " ", html))


def section():
    page = run_page_html(Run(post_mortems=post_mortems()))
    return page.partition('id="out-of-memory"')[2].partition("</section>")[0]


def test_the_page_says_why_and_what_would_help():
    text = text_of(section())
    assert "Epoch 1, step 4, batch of 1,024 in 2 micro-batches of 512" in text
    assert (
        "GPU:0 had too little memory: an allocation of 2.00 MiB failed "
        "(tower_1/dense_1/MatMul, layer tower/dense, forward) when 63.0 MiB of "
        "64.0 MiB were in use."
    ) in text
    assert "4 micro-batches of 256 should fit: their peak is estimated at 58.0" in text
    assert "Largest free block 1.00 MiB" in text
    assert "In use at the peak: 80.0 MiB (estimated, analytic)" in text
    layers = "By layer: tower/dense 70.0 MiB, tower/head 6.00 MiB, (no layer) 4.00 MiB."
    assert layers in text
    assert "mixed precision about 22.0 MiB less (estimated)" in text


def test_the_table_has_every_layer_and_adds_up():
    (one, _), _ = post_mortem_views(post_mortems())
    assert one.table.rows[0] == ("tower/dense", "activation", "40.0 MiB", "50.0 %")
    assert len(one.table.rows) == 5
    assert sum(float(row[3].removesuffix(" %")) for row in one.table.rows) == 100


def test_a_pipeline_is_told_without_a_peak():
    (_, one), _ = post_mortem_views(post_mortems())
    assert one.table.rows == ()
    assert one.figures == []
    assert one.fitting == ""
    assert "smaller micro-batches do not help" in one.cause


def test_the_first_ones_are_shown_and_the_rest_is_said():
    device, _ = post_mortems()
    many = [replace(device, step=step) for step in range(30)]
    kept, note = post_mortem_views(many)
    assert len(kept) == MOST_POST_MORTEMS
    assert note == (
        "Showing the first 12 of 30; all of them are in post_mortems.jsonl."
    )


def test_a_run_that_had_enough_says_nothing_of_it():
    assert "out-of-memory" not in run_page_html(Run(memory=memory_records(1)))


def test_the_section_is_well_formed():
    tags = Tags(run_page_html(Run(post_mortems=post_mortems())))
    assert tags.open == []
    assert all("style" not in attributes for _, attributes in tags.found)


def test_the_terminal_says_it_in_a_table():
    console = Console(width=300)
    with console.capture() as captured:
        console.print(post_mortem_table([post_mortems()[0]] * 7))
    text = re.sub(r"\s+", " ", captured.get())
    assert "Out of memory" in text
    assert "4 micro-batches of 256 should fit" in text
    assert "mixed precision, about 22.0 MiB less (estimated)" in text
    assert "2 more" in text
