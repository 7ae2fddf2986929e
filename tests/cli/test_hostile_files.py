"""A file that was made to exhaust memory, or to lead elsewhere, is one line and 2."""

import os
import re
import shutil
import time
from pathlib import Path

import pytest

from tests.files.hostile import hostile, ordinary

pytestmark = pytest.mark.one_backend

MOST_MIB, MOST_SECONDS = 500, 20
FILES = hostile()


@pytest.fixture(scope="module")
def sound(tmp_path_factory):
    folder, before = tmp_path_factory.mktemp("sound"), Path.cwd()
    os.chdir(folder)
    ordinary()
    os.chdir(before)
    return folder


@pytest.fixture
def copied(sound, tmp_path, monkeypatch):
    shutil.copytree(sound, tmp_path, dirs_exist_ok=True)
    monkeypatch.chdir(tmp_path)


def high_water_mib():
    return (
        int(re.search(r"VmHWM:\s*(\d+)", Path("/proc/self/status").read_text())[1])
        / 1024
    )


@pytest.mark.filterwarnings("ignore:Skipping nested container")
@pytest.mark.parametrize("name", FILES)
def test_a_hostile_file_is_one_line(name, copied, kerasmem):
    one = FILES[name]
    one.write()
    Path("/proc/self/clear_refs").write_text("5")
    before, start = high_water_mib(), time.monotonic()
    call = kerasmem(one.command)
    assert high_water_mib() - before < MOST_MIB
    assert time.monotonic() - start < MOST_SECONDS
    assert (call.code, call.out) == (2, "")
    assert one.message in " ".join(call.err.split())
    assert call.err.splitlines()[-1].startswith("kerasmem: error: ")
    assert len(call.err) < 6000
    assert not Path("out.keras").exists()
    assert not Path("out.html").exists()


def test_sound_files_are_no_hostile_ones(copied, kerasmem):
    for line in (
        "inspect model.keras",
        "inspect coded.keras",
        "inspect model.h5",
        "evaluate model.keras --data data.npz",
        "report run -o run.html",
    ):
        assert kerasmem(line).code == 0
