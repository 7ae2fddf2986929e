"""What a killed command left in the system's temporary folder goes with the next."""

import os
import signal
import tempfile
from pathlib import Path

import pytest

from kerasmem.cli.main import _temporary_folder

pytestmark = pytest.mark.one_backend


@pytest.fixture
def system(tmp_path, monkeypatch):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    return tmp_path


def killed_while_it_writes():
    child = os.fork()
    if not child:
        with _temporary_folder():
            Path(tempfile.mkdtemp(prefix="kerasmem-"), "model.keras").write_bytes(b"x")
            os.kill(os.getpid(), signal.SIGKILL)
    os.waitpid(child, 0)


def test_what_a_killed_command_left_is_removed_by_the_next(system):
    killed_while_it_writes()
    (left,) = system.iterdir()
    (system / "mine").mkdir()
    os.utime(left, (0, 0))
    with _temporary_folder():
        (own,) = [path for path in system.iterdir() if path.name != "mine"]
        assert own != left
        assert tempfile.gettempdir() == os.environ["TMPDIR"] == str(own)
    assert [path.name for path in system.iterdir()] == ["mine"]
    assert tempfile.gettempdir() == os.environ["TMPDIR"] == str(system)


def test_what_a_living_command_has_stays(system):
    with _temporary_folder():
        (own,) = system.iterdir()
        os.utime(own, (0, 0))
        tempfile.tempdir = str(system)
        with _temporary_folder():
            assert own.exists()
