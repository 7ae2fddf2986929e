"""The comparison with other tools says what was measured, whoever wins."""

import json
from dataclasses import asdict
from importlib.metadata import version

import pytest

from tests.benchmarks.peers.page import page
from tests.benchmarks.peers.row import Row
from tests.benchmarks.peers.run import measured
from tests.benchmarks.peers.table import markdown
from tests.benchmarks.peers.task import Task
from tests.benchmarks.peers.verdict import verdict

pytestmark = pytest.mark.one_backend

PEER = {
    "network": "dense",
    "job": "prune",
    "tool": "Other 1",
    "form": ".h5",
    "file_bytes": 9000,
    "gzip_bytes": 1000,
    "weight_bytes": 4000,
    "accuracy": 0.85,
}
OURS = {**PEER, "tool": "kerasmem 0.1", "form": ".keras"}


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"file_bytes": 900}, "beaten by .keras: smaller"),
        ({"gzip_bytes": 900}, "beaten by .keras: smaller"),
        ({"gzip_bytes": 995, "accuracy": 0.854}, "as good as .keras"),
        ({"accuracy": 0.87}, "beaten by .keras: more accurate"),
        ({"weight_bytes": 1000}, "beaten by .keras: less RAM"),
        ({"weight_bytes": None}, "as good as .keras"),
        ({"gzip_bytes": 1100}, "**not beaten**: .keras is larger"),
        (
            {"gzip_bytes": 900, "accuracy": 0.83, "weight_bytes": 9000},
            "**not beaten**: .keras is less accurate, more RAM (but smaller)",
        ),
        ({"accuracy": None}, "-"),
    ],
)
def test_verdict_names_what_is_better_and_what_is_worse(changes, expected):
    assert verdict(Row(**PEER), [Row(**{**OURS, **changes})]) == expected


def test_verdict_takes_the_row_that_wins():
    larger = Row(**{**OURS, "gzip_bytes": 2000})
    smaller = Row(**{**OURS, "form": ".keras, entropy", "gzip_bytes": 500})
    said = verdict(Row(**PEER), [larger, smaller])
    assert said == "beaten by .keras, entropy: smaller"
    assert verdict(Row(**PEER), []) == "-"


def test_verdict_counts_step_time_of_students():
    peer, ours = (
        Row("dense", "distill", form="same", accuracy=0.8, step_ms=ms)
        for ms in (2.0, 2.2)
    )
    assert verdict(peer, [ours]) == "**not beaten**: same is slower"
    assert verdict(ours, [peer]) == "beaten by same: faster"


def test_table_compares_files_of_one_job_and_one_family():
    rows = [
        Row(**PEER),
        Row(**{**PEER, "form": ".tflite", "gzip_bytes": 10, "weight_bytes": None}),
        Row("dense", "prune", "Broken 2", note="failed: ValueError: x | y"),
        Row(**{**OURS, "gzip_bytes": 900}),
        Row("dense", "distill", "Other 1", "soft", accuracy=0.8, step_ms=2.0),
        Row("dense", "distill", "kerasmem 0.1", "soft", accuracy=0.8, step_ms=1.0),
        Row("", "", "absent", note="not run: No module named 'absent'"),
    ]
    assert markdown(rows, ["dense"]) == (
        """## The dense net

| job | tool | file | bytes | gzipped | in RAM | accuracy | verdict |
| --- | --- | --- | --- | --- | --- | --- | --- |
| prune | kerasmem 0.1 | .keras | 9,000 | 900 | 4,000 | 85.00 % |  |
| prune | Other 1 | .h5 | 9,000 | 1,000 | 4,000 | 85.00 % | beaten by .keras: smaller |
| prune | Other 1 | .tflite | 9,000 | 10 |  | 85.00 % | - |
| prune | Broken 2 |  |  |  |  |  | not measured; failed: ValueError: x \\| y |

A student a quarter as wide as the dense net:

| tool | settings | ms a step | accuracy | verdict |
| --- | --- | --- | --- | --- |
| Other 1 | soft | 2.00 | 80.00 % | beaten by soft: faster |
| kerasmem 0.1 | soft | 1.00 | 80.00 % |  |

- absent: not run: No module named 'absent'
"""
    )


def test_page_tells_when_and_with_what_it_was_measured():
    about = {
        "date": "2026-01-02",
        "versions": {"keras": "3.15", "numpy": "2.4"},
        "machine": "x86_64",
        "samples": 10_000,
        "epochs": 5,
        "more_epochs": 2,
    }
    text = page(about, [Row(**PEER)], ["dense"])
    assert "Measured on 2026-01-02 with keras 3.15, numpy 2.4; x86_64; 10,000" in text
    assert text.endswith(markdown([Row(**PEER)], ["dense"]))


def test_a_peer_that_fails_is_a_row_and_no_crash(tmp_path):
    task = Task(str(tmp_path), "no.npz", networks=("dense",))
    peers = ("tests.fake_peer", "tests.no_such_peer", "elsewhere")
    nowhere = {"elsewhere": str(tmp_path / "python")}
    works, fails, dies, absent, lost = measured(task, peers, nowhere)
    assert works.tool == fails.tool == f"Fake {version('numpy')}"
    assert works.file_bytes == 10_000
    assert works.shipped_bytes < 100  # ten thousand zeros
    assert fails.note == "failed: ValueError: no such layer"
    assert dies.note.startswith("ended with 3")
    assert "no_such_peer" in absent.note
    assert "No such file" in lost.note


def test_a_peer_that_ended_well_in_the_folder_is_not_run_again(tmp_path):
    row = Row("dense", "float", "Other 1", ".h5", accuracy=0.5)
    (tmp_path / "tests.fake_peer.jsonl").write_text(json.dumps(asdict(row)))
    task = Task(str(tmp_path), "no.npz", networks=("dense",))
    assert measured(task, ["tests.fake_peer"]) == [row]
