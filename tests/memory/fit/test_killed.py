"""kill -9 in the middle of a step, a copy or a save loses nothing that was saved."""

import subprocess
import sys
import time
from pathlib import Path

import pytest

import kerasmem as km
from kerasmem.files.read_run import read_run
from tests.memory.fit.endless import Greedy

pytestmark = pytest.mark.one_backend

PATIENCE = 600  # seconds


def wait_until(condition, child):
    end = time.monotonic() + PATIENCE
    while not condition():
        assert child.poll() is None, child.stderr.read()[-3000:]
        assert time.monotonic() < end
        time.sleep(0.02)


def test_what_was_saved_is_there_after_a_kill(tmp_path, new_interpreter):
    model = tmp_path / "model.keras"
    child = subprocess.Popen(
        [sys.executable, "-m", "tests.memory.fit.endless", str(tmp_path)],
        cwd=Path(__file__).parents[3],
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        wait_until(model.exists, child)
        first = model.stat().st_mtime_ns
        # It is saving all the time; that it was killed in a save is left to chance.
        wait_until(lambda: model.stat().st_mtime_ns > first, child)
    finally:
        child.kill()
        child.communicate()
    loaded = km.load_model(model)
    assert loaded.count_params() == 4 * 256 + 256 + 257
    assert isinstance(loaded.optimizer, Greedy)
    found = read_run(tmp_path).post_mortems
    assert [each.micro_batches for each in found] == [1]
