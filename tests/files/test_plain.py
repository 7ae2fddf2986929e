"""Plain data is read by type, to a size and to a depth; files, if they are regular."""

import dataclasses
import gzip
import json
import math
import os
import shutil
import socket
from contextlib import contextmanager

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kerasmem.errors import InputError, KerasMemError, shortened
from kerasmem.files.read_run import read_run
from kerasmem.files.run_dir import Journal
from kerasmem.memory.compress_activations import (
    ActivationReport,
    GradientChange,
    LayerBytes,
)
from kerasmem.records import Timeline, WeightChange
from kerasmem.records.plain import read_json, record_from
from kerasmem.records.regular import open_regular, read_regular
from kerasmem.report.run.page import run_page_html
from tests.files.hostile import write_run
from tests.report.runs import small_run

pytestmark = pytest.mark.one_backend

RUN = small_run()
RECORDS = [
    RUN.info,
    *RUN.memory[:1],
    *RUN.gradients[:1],
    *RUN.findings[:1],
    *RUN.post_mortems[:1],
    *RUN.timelines[:1],
]
OF_A_MODEL = [
    ActivationReport(
        (LayerBytes("dense", 8, 2, "8 bits"),),
        (GradientChange("dense", math.inf),),
        0.5,
    ),
]
STEMS = {
    "RunInfo": "run.json",
    "MemoryRecord": "memory.jsonl",
    "GradientRecord": "gradients.jsonl",
    "Finding": "findings.jsonl",
    "PostMortem": "post_mortems.jsonl",
}
WRONG = [
    *([], {}, {"a": 1}, "x", "\ud800", -1, 1.5, math.nan, math.inf, True, None),
    *(10**400, 1 << 53, [None], ["x"], [-1], [[]], [{}], 0, (1 << 53) - 1, 1e308, ""),
]


def places(value, path=()):
    """Yield the paths of everything in plain data."""
    yield path
    if isinstance(value, dict | list):
        pairs = value.items() if isinstance(value, dict) else enumerate(value[:2])
        for key, each in pairs:
            yield from places(each, (*path, key))


def replaced(value, path, new):
    if not path:
        return new
    copy = dict(value) if isinstance(value, dict) else list(value)
    copy[path[0]] = replaced(copy[path[0]], path[1:], new)
    return copy


@pytest.mark.parametrize(
    "record", [*RECORDS, *OF_A_MODEL], ids=lambda record: type(record).__name__
)
def test_a_record_with_anything_of_another_type_is_refused_or_as_it_says(record):
    plain = json.loads(record.to_json())
    refused = 0
    for path in places(plain):
        for wrong in WRONG:
            text = json.dumps(replaced(plain, path, wrong))
            try:
                found = type(record).from_json(text)
            except InputError:
                refused += 1
                continue
            if isinstance(found, ActivationReport):
                assert found.table()
            # What was taken is written and read back as it was.
            assert repr(type(record).from_json(found.to_json())) == repr(found)
    assert refused > 5 * len(list(places(plain)))


@pytest.mark.parametrize("record", RECORDS, ids=lambda record: type(record).__name__)
def test_a_page_is_made_of_whatever_was_taken(record, tmp_path):
    plain, folder, taken = json.loads(record.to_json()), tmp_path / "run", 0
    for wrong in WRONG:
        write_run(folder)
        lines = [json.dumps(replaced(plain, path, wrong)) for path in places(plain)]
        content = "\n".join(lines).encode()
        if isinstance(record, Timeline):
            content = gzip.compress(content)
            (folder / "timeline-0002.json.gz").write_bytes(content)
        else:
            (folder / STEMS[type(record).__name__]).write_bytes(content)
        taken += run_page_html(read_run(folder)).count("<html")
        shutil.rmtree(folder)
    assert taken == len(WRONG)


@given(st.recursive(st.none() | st.integers() | st.text(), st.lists, max_leaves=9))
def test_plain_data_comes_back(value):
    assert (
        read_json(json.dumps(value)) == read_json(json.dumps(value).encode()) == value
    )


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[" * 100_000, "It cannot be read: maximum recursion depth"),
        (
            "[" * 201 + "]" * 201,
            "nested too deeply. Expected: 200 levels at most. Received: 201",
        ),
        (
            '{"a":' * 500 + "1" + "}" * 500,
            "nested too deeply. Expected: 200 levels at most. Received: 201",
        ),
        ("[" + "1," * 3_000_000 + "1]", "2097152 values at most"),
        ("1" * 5000, "Exceeds the limit"),
        (b"\xff", "no text"),
        (r'["\ud800"]', "surrogates not allowed"),
        (" " * ((16 << 20) + 1), "16.0 MiB and"),
    ],
    ids=lambda value: str(value)[:20],
)
def test_json_that_no_reader_bears_is_refused(text, message):
    with pytest.raises(InputError, match=message):
        read_json(text)


@pytest.mark.parametrize("kind", [ActivationReport])
@pytest.mark.parametrize("text", ["[" * 100_000, "[]", "{}", "{", '{"a": 1}', "\ud800"])
def test_measurements_of_a_model_that_are_none_are_one_line(kind, text):
    with pytest.raises(InputError) as refused:
        kind.from_json(text)
    assert len(str(refused.value).splitlines()) == 1


def test_pairs_of_half_characters_are_one():
    assert read_json(r'["\ud83d\ude00"]') == ["\N{GRINNING FACE}"]


def test_a_field_that_is_missing_or_unknown_is_named():
    change = dataclasses.asdict(WeightChange("a", "a/k", "prune", True, "", 8, 8))
    assert record_from(WeightChange, change).weight == "a/k"
    with pytest.raises(InputError, match="may be missing. Received: weight"):
        record_from(WeightChange, {k: v for k, v in change.items() if k != "layer"})
    with pytest.raises(InputError, match="Received: layer.*, extra"):
        record_from(WeightChange, change | {"extra": 1})
    with pytest.raises(InputError, match=r"whole number from 0 .*before_bytes=-1"):
        record_from(WeightChange, change | {"before_bytes": -1})


def test_a_block_of_an_event_that_never_was_is_refused():
    plain = json.loads(RUN.timelines[0].to_json())
    plain["blocks"]["freed_at"][0] = len(plain["times_ns"])
    with pytest.raises(InputError, match="has figures or blocks of other events"):
        Timeline.from_json(json.dumps(plain))


def a_socket(path):
    with socket.socket(socket.AF_UNIX) as one:
        one.bind(path.name)


@pytest.mark.parametrize(
    "made",
    [
        lambda path: path.symlink_to("file"),
        lambda path: path.symlink_to("nowhere"),
        os.mkfifo,
        os.mkdir,
        a_socket,
    ],
    ids=["link", "dangling link", "fifo", "folder", "socket"],
)
@pytest.mark.parametrize("mode", ["rb", "ab", "rb+"])
def test_only_a_regular_file_is_opened(made, mode, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "file").write_bytes(b"mine")
    made(tmp_path / "other")
    with pytest.raises(OSError, match=r"regular file|Is a directory"):
        open_regular(tmp_path / "other", mode)
    assert (tmp_path / "file").read_bytes() == b"mine"
    assert not (tmp_path / "nowhere").exists()


def test_a_link_of_the_users_own_leads_to_its_file(tmp_path):
    (tmp_path / "file").write_bytes(b"mine")
    (tmp_path / "link").symlink_to("file")
    assert read_regular(tmp_path / "link", 4, follow_link=True) == b"mine"
    with pytest.raises(InputError, match="is too large. Expected: 3 B at most"):
        read_regular(tmp_path / "file", 3)


def test_a_monitor_appends_to_no_link(tmp_path):
    (tmp_path / "file").write_bytes(b"mine")
    (tmp_path / "memory.jsonl").symlink_to("file")
    with pytest.raises(OSError, match="regular file"):
        Journal(tmp_path, "memory.jsonl").append("{}")
    assert (tmp_path / "file").read_bytes() == b"mine"


def test_a_line_after_a_failed_write_begins_anew(tmp_path, monkeypatch):
    journal = Journal(tmp_path, "memory.jsonl")
    journal.append("first")

    @contextmanager
    def full_disk(path, mode):
        with open_regular(path, mode) as file:
            file.write(b"sec")
        raise OSError("No space left on device")
        yield

    with monkeypatch.context() as patch:
        patch.setattr("kerasmem.files.run_dir.open_regular", full_disk)
        with pytest.raises(OSError, match="No space"):
            journal.append("second")
    journal.append("third")
    lines = (tmp_path / "memory.jsonl").read_text().splitlines()
    assert lines == ["first", "sec", "third"]


def test_a_message_says_no_more_than_can_be_read():
    assert str(KerasMemError("short")) == "short"
    path = "/" + "a/" * 5000 + "model.keras"
    text = str(InputError(f"There is no file {path!r}."))
    assert len(text) < 250
    assert text.endswith("model.keras'.")
    assert text.startswith("There is no file '/a/")
    assert len(shortened("a b " * 5000)) == 4000
