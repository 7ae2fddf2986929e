"""A save that is killed leaves a whole file, and nothing for long."""

import fcntl
import os
import subprocess
import sys
import time
from pathlib import Path

import keras
import numpy as np
import pytest

import kerasmem as km
from kerasmem.files.atomic import _PREFIX, replacing
from tests.models import L, chain

pytestmark = pytest.mark.one_backend

SAVER = Path(__file__).with_name("killed_saver.py")


def killed(path, kills):
    """Kill a process that saves, so many times; return how often it had saved."""
    done = subprocess.run(
        [sys.executable, SAVER, path, str(kills)],
        capture_output=True,
        text=True,
        check=False,
        timeout=300 + 30 * kills,
    )
    assert done.returncode == 0, done.stderr
    return [int(line) for line in done.stdout.split()]


def test_five_kills_leave_a_whole_file_each(tmp_path):
    path = tmp_path / "m.keras"
    numbers = killed(path, 5)
    assert len(numbers) == 5
    assert 1 <= numbers[0] < numbers[-1]
    for weight in keras.models.load_model(path).get_weights():
        np.testing.assert_array_equal(weight, numbers[-1])
    left = [name for name in os.listdir(tmp_path) if name != "m.keras"]
    assert all(name.startswith(_PREFIX) for name in left)
    for name in left:
        os.utime(tmp_path / name, (0, 0))
    km.save_model(chain((2,), L.Dense(1)), path)
    assert os.listdir(tmp_path) == ["m.keras"]


def left_folder(folder, name, age):
    made = folder / f"{_PREFIX}{name}"
    made.mkdir()
    (made / "new.keras").write_text("half")
    os.utime(made, (time.time() - age,) * 2)
    return made


def test_what_a_killed_process_left_goes_and_what_is_in_use_stays(tmp_path):
    old, young = left_folder(tmp_path, "old", 99), left_folder(tmp_path, "young", 1)
    used = left_folder(tmp_path, "used", 99)
    others = tmp_path / ".others"
    others.mkdir()
    os.utime(others, (0, 0))
    handle = os.open(used, os.O_RDONLY)
    fcntl.flock(handle, fcntl.LOCK_EX)
    try:
        with replacing(tmp_path / "a.txt") as temporary:
            temporary.write_text("whole")
    finally:
        os.close(handle)
    assert [p.exists() for p in (old, young, used, others)] == [False, True, True, True]
    assert (tmp_path / "a.txt").read_text() == "whole"


def test_a_folder_is_held_while_a_file_is_written(tmp_path):
    with replacing(tmp_path / "a.txt") as outer:
        os.utime(outer.parent, (0, 0))
        with replacing(tmp_path / "b.txt") as inner:
            inner.write_text("b")
        outer.write_text("a")
    assert sorted(os.listdir(tmp_path)) == ["a.txt", "b.txt"]
