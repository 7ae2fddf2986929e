"""The script of the day a GPU is at hand: pieces, results, and no case twice."""

import json
import subprocess

import keras
import pytest

from kerasmem import backends
from tests.benchmarks import gpu_day


def rows_of(path):
    return [json.loads(line) for line in path.read_text().splitlines()]


@pytest.mark.one_backend
def test_every_case_is_in_one_piece_and_no_piece_takes_longer_than_asked():
    cases = gpu_day.all_cases("gpu")
    pieces = gpu_day.pieces_of(cases, 480, at_once=6)
    assert [case for piece in pieces for case in piece] == cases
    assert len({case.name for case in cases}) == len(cases)
    for piece in pieces:
        alone = sum(case.seconds for case in piece if case.alone)
        shared = sum(case.seconds for case in piece if not case.alone)
        assert alone + shared / 6 <= 480
    ways = {(c.kind, c.backend, c.settings.get("jit")) for c in cases}
    kinds = ("marked_tests", "watched", "monitors", "peak", "batch_size")
    kinds += ("rematerialized", "products")
    for backend, compilers in gpu_day.COMPILERS.items():
        for jit in compilers:
            assert ("out_of_memory", backend, jit) in ways
        assert ("peak", backend, compilers[-1]) in ways
        for kind in kinds:
            assert any(way[:2] == (kind, backend) for way in ways)


@pytest.mark.one_backend
def test_the_models_of_the_lease_are_eight_and_tensorflow_comes_last():
    cases = gpu_day.all_cases("gpu")
    for backend in gpu_day.BACKENDS:
        peaks = [c for c in cases if (c.kind, c.backend) == ("peak", backend)]
        assert len({case.settings["model"] for case in peaks}) == 8
    is_last = [case.backend == "tensorflow" for case in cases]
    assert is_last == sorted(is_last)


def test_a_case_leaves_a_line_and_a_second_call_begins_nothing(
    backend, tmp_path, monkeypatch, capsys
):
    if backend == "torch":
        return  # one without an allocator that counts is enough
    path = tmp_path / "found.jsonl"
    jit = backend == "jax"
    case = f"peak {backend} model=small dtype=float32 optimizer=adam jit={jit}"
    call = ["--device", "cpu", "--only", case, "--piece", "0", "-o", str(path)]
    gpu_day.main([*call, "--commit", "abc"])
    (row,) = rows_of(path)
    assert row["error"] is None, row
    assert (row["backend"], row["model"], row["batch"]) == (backend, "small", 16)
    assert (row["commit"], row["driver"]) == ("abc", None)
    assert row["device"].startswith("CPU, ")
    assert row["versions"]["keras"] == keras.__version__
    assert row["seconds"] > 0
    figures = row["figures"]
    assert figures["low_bytes"] <= figures["estimated_bytes"] <= figures["high_bytes"]
    if backend == "tensorflow":  # the only allocator that counts on a CPU
        weights = 4 * (8 * 10 + 10)
        assert weights <= figures["steady_bytes"] <= 2**20
        off = figures["estimated_bytes"] / figures["steady_bytes"] - 1
        assert figures["off"] == pytest.approx(off)
    else:
        assert figures["steady_bytes"] is None
        assert not backends.current().device_memory()

    before = path.read_bytes()
    monkeypatch.setattr(subprocess, "Popen", None)
    gpu_day.main(call)
    assert path.read_bytes() == before
    assert "1 of 1 cases are done" in capsys.readouterr().out


@pytest.mark.one_backend
def test_what_failed_is_tried_again_only_if_asked_and_a_cut_line_is_no_result(
    tmp_path, monkeypatch
):
    path = tmp_path / "found.jsonl"
    cases = [case for case in gpu_day.all_cases("cpu") if case.kind == "marked_tests"]
    case = next(case for case in cases if case.backend == keras.backend.backend())
    call = ["--device", "cpu", "--only", case.name, "-o", str(path), "--commit", "a"]
    answers = [{"figures": None, "error": "broken"}, {"figures": 1, "error": None}]
    monkeypatch.setattr(gpu_day, "asked", lambda *_: answers.pop(0))
    path.write_text(f'{{"case": "{case.name}", "err')
    gpu_day.main(call)
    gpu_day.main(call)
    assert len(answers) == 1
    gpu_day.main([*call, "--again"])
    rows = [json.loads(line) for line in path.read_text().splitlines()[1:]]
    assert [row["error"] for row in rows] == ["broken", None]


@pytest.mark.one_backend
def test_a_case_that_is_cut_off_by_the_end_of_the_piece_counts_as_not_begun(
    tmp_path, monkeypatch
):
    path = tmp_path / "found.jsonl"
    monkeypatch.setattr(gpu_day, "asked", lambda *_: None)
    call = ["--device", "cpu", "--only", "marked_tests", "-o", str(path)]
    gpu_day.main([*call, "--commit", "a", "--minutes", "0.1"])
    assert not path.exists()
    gpu_day.main([*call, "--commit", "a", "--minutes", "60"])
    assert {row["error"] for row in rows_of(path)} == {"no answer in 120 s"}
