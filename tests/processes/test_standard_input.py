"""A child process does not read the standard input of its parent."""

import os
import sys

import pytest

import kerasmem as km
from kerasmem.processes import run_script

pytestmark = pytest.mark.one_backend


@pytest.fixture(params=["file", "pipe", "closed"])
def standard_input(request, tmp_path):
    """Replace descriptor 0 of this process; pytest itself has it at /dev/null."""
    before = os.open(os.devnull, os.O_RDONLY)
    if request.param == "closed":
        os.close(0)
    elif request.param == "pipe":
        end, writer = os.pipe()
        os.write(writer, b"of the parent")
        os.close(writer)
        os.dup2(end, 0)
        os.close(end)
    else:
        (tmp_path / "input").write_text("of the parent")
        file = os.open(tmp_path / "input", os.O_RDONLY)
        os.dup2(file, 0)
        os.close(file)
    yield
    os.dup2(before, 0)
    os.close(before)


@pytest.mark.usefixtures("new_interpreter", "standard_input")
def test_a_script_in_a_child_reads_nothing(tmp_path):
    script = tmp_path / "script.py"
    script.write_text("import sys; print(repr(sys.stdin.read()))")
    assert run_script(script) == "''\n"


@pytest.mark.usefixtures("standard_input")
def test_an_isolated_function_reads_nothing():
    def read():
        return sys.stdin.read()

    assert km.memory.isolated(read)() == ""
