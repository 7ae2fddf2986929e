"""A run's folder is read back whole, and as far as it goes where it was cut off."""

import gzip
import re
import sys
from dataclasses import replace

import pytest

from kerasmem.errors import InputError
from kerasmem.files.read_run import read_run
from kerasmem.files.run_dir import add_post_mortem, add_timelines
from kerasmem.records import Run
from tests.report.runs import (
    countable_timeline,
    memory_records,
    post_mortems,
    small_run,
)

pytestmark = pytest.mark.one_backend


def write_lines(path, records):
    path.write_text("".join(f"{record.to_json()}\n" for record in records))


@pytest.fixture
def folder(tmp_path):
    run = small_run()
    (tmp_path / "run.json").write_text(run.info.to_json())
    write_lines(tmp_path / "memory.jsonl", run.memory)
    write_lines(tmp_path / "gradients.jsonl", run.gradients)
    write_lines(tmp_path / "findings.jsonl", run.findings)
    write_lines(tmp_path / "post_mortems.jsonl", run.post_mortems)
    add_timelines(tmp_path, run.timelines)
    return tmp_path


def without_nan(run):
    return re.sub(r"\bnan\b", "'none'", repr(run))


def test_what_was_written_comes_back(folder):
    expected = Run(**{**vars(small_run()), "notes": (), "name": folder.name})
    assert without_nan(read_run(folder)) == without_nan(expected)


def test_a_half_last_line_is_left_out_and_said(folder):
    file = folder / "memory.jsonl"
    file.write_text(file.read_text()[:-30])
    run = read_run(folder)
    assert run.memory == memory_records(4)[:3]
    assert run.notes == ("The last line of memory.jsonl is cut off and was left out.",)


def test_lines_that_are_none_of_ours_are_counted(folder):
    file = folder / "findings.jsonl"
    file.write_text('[1]\n{"kind": "leak"}\n' + file.read_text())
    run = read_run(folder)
    assert len(run.findings) == 1
    assert run.notes == ("2 of 3 lines of findings.jsonl are damaged.",)


def test_a_line_of_an_older_version_is_read(tmp_path):
    line = (
        '{"epoch": 0, "batch": null, "host": null, "devices": [{"name": "GPU:0", '
        '"current_bytes": 1, "peak_bytes": 2, "peak_was_reset": true}]}'
    )
    (tmp_path / "memory.jsonl").write_text(line)
    (record,) = read_run(tmp_path).memory
    assert (record.phase, record.devices[0].reserved_bytes) == ("train", None)


def test_every_process_is_read(folder):
    write_lines(folder / "memory-p1.jsonl", memory_records(2, process=1))
    add_timelines(folder, [countable_timeline()], process=1)
    run = read_run(folder)
    assert [record.process for record in run.memory] == [0, 0, 0, 0, 1, 1]
    assert [timeline.allocator for timeline in run.timelines] == [
        "GPU_0_bfc",
        "cpu",
        "GPU_0_bfc of process 1",
    ]


def test_a_damaged_window_leaves_the_others(folder):
    file = folder / "timeline-0000.json.gz"
    (folder / "timeline-0001.json.gz").write_bytes(file.read_bytes()[:-40])
    run = read_run(folder)
    assert len(run.timelines) == 2
    assert run.notes == ("timeline-0001.json.gz is damaged and was left out.",)


@pytest.mark.parametrize("content", [None, "{half"])
def test_a_run_without_its_head_is_a_run(folder, content):
    head = folder / "run.json"
    head.unlink() if content is None else head.write_text(content)
    run = read_run(folder)
    assert run.info is None
    assert len(run.memory) == 4


def test_a_folder_with_nothing_of_ours_is_refused(tmp_path):
    (tmp_path / "notes.txt").write_text("mine")
    with pytest.raises(InputError, match="contains no records of a monitor.*log_d"):
        read_run(tmp_path)


def test_a_folder_that_is_not_there_is_refused(tmp_path):
    with pytest.raises(
        InputError,
        match="There is no folder here. Expected: the log_dir of a monitor. "
        "Received: path=",
    ):
        read_run(tmp_path / "missing")


def test_post_mortems_are_added_one_by_one_for_every_process(tmp_path):
    device, pipeline = post_mortems()
    add_post_mortem(tmp_path / "run", device)
    add_post_mortem(tmp_path / "run", replace(device, process=1))
    add_post_mortem(tmp_path / "run", pipeline)
    found = read_run(tmp_path / "run").post_mortems
    assert found == (device, pipeline, replace(device, process=1))


def test_a_post_mortem_without_a_folder_is_written_nowhere(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    add_post_mortem(None, post_mortems()[0])
    assert list(tmp_path.iterdir()) == []


def limited(monkeypatch, **limits):
    for name, value in limits.items():
        monkeypatch.setattr(sys.modules[read_run.__module__], name, value)


def test_of_many_files_no_more_is_read_than_of_one(folder, monkeypatch):
    (folder / "gradients.jsonl").unlink()
    for process in (1, 2):
        write_lines(folder / f"memory-p{process}.jsonl", memory_records(4, process))
    firsts = ("findings", "post_mortems", "memory")
    sizes = [(folder / f"{stem}.jsonl").stat().st_size for stem in firsts]
    limited(monkeypatch, _MOST_BYTES=sum(sizes) + sizes[2] // 2)
    run = read_run(folder)
    assert [record.process for record in run.memory][:4] == [0] * 4
    assert 1 <= len(run.memory) - 4 <= 3
    assert len(run.findings) == 1
    assert run.timelines == ()
    assert re.search(
        r"Later records were left out, in memory-p1.jsonl, memory-p2.jsonl, "
        r"timeline-0000.json.gz\.$",
        run.notes[-1],
    )


def test_of_many_lines_no_more_are_read_than_of_one_file(folder, monkeypatch):
    lines = sum(len(f.read_text().splitlines()) for f in folder.glob("*.jsonl"))
    limited(monkeypatch, _MOST_LINES=lines - 3)
    assert len(read_run(folder).memory) == 1


def test_windows_that_take_more_than_a_run_may_are_left_out(tmp_path, monkeypatch):
    for _ in range(6):
        file = add_timelines(tmp_path, [countable_timeline()])
    text = gzip.decompress(file.read_bytes())
    most = max(len(text), 12 * text.count(b","))
    limited(monkeypatch, _MOST_BYTES=2 * most)
    run = read_run(tmp_path)
    assert len(run.timelines) == 2
    assert "in timeline-0002.json.gz, timeline-0003.json.gz, timel" in run.notes[0]
    assert run.notes[0].endswith("and 1 more files.")


def test_damaged_windows_count_too(tmp_path, monkeypatch):
    for _ in range(9):
        add_timelines(tmp_path, [countable_timeline()]).write_bytes(b"none")
    add_timelines(tmp_path, [countable_timeline()])
    limited(monkeypatch, _MOST_BYTES=4 << 20)
    with pytest.raises(InputError, match="left out, in timeline-0004.json.gz"):
        read_run(tmp_path)
