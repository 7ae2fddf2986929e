"""A fork does what an interpreter would."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

pytestmark = pytest.mark.one_backend
CODE = """
import os, sys
import warnings
print(sys.argv, os.getcwd(), os.environ["WORD"], sys.path[0] == "", __name__)
print(sys.stdin.read(), "keras" in sys.modules, file=sys.stderr)
sys.exit(7)
"""


def python(*arguments, **options):
    command = [sys.executable, *map(str, arguments)]
    return subprocess.run(
        command, capture_output=True, text=True, check=False, **options
    )


def test_a_fork_has_arguments_folder_environment_and_streams(tmp_path):
    environment = os.environ | {"WORD": "here"}
    options = {"cwd": tmp_path, "env": environment, "input": "read"}
    done = python("-c", CODE, "a", "b c", **options)
    assert done.returncode == 7
    assert done.stdout == f"['-c', 'a', 'b c'] {tmp_path} here True __main__\n"
    assert done.stderr.splitlines()[-1] == "read True"


def test_a_script_and_a_module_find_what_is_beside_them(tmp_path):
    (tmp_path / "beside.py").write_text("WORD = 'found'")
    script = tmp_path / "script.py"
    script.write_text("import beside, sys; print(beside.WORD, sys.argv[1:])")
    for arguments in ((script, "x"), ("-m", "script", "x")):
        done = python(*arguments, cwd=tmp_path)
        assert done.stdout == "found ['x']\n", done.stderr


def test_an_error_is_told_on_stderr_and_ends_the_fork_with_1():
    done = python("-c", "1 / 0")
    assert done.returncode == 1
    assert done.stderr.splitlines()[-1] == "ZeroDivisionError: division by zero"


def test_a_fork_that_a_signal_ends_ends_who_asked_by_the_same():
    done = python("-c", "import os, signal; os.kill(os.getpid(), signal.SIGKILL)")
    assert done.returncode == -signal.SIGKILL


def test_a_fork_ends_with_who_asked(tmp_path):
    code = "import os, time; print(os.getpid(), flush=True); time.sleep(600)"
    command = [sys.executable, "-c", code]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as asked:
        fork = int(asked.stdout.readline())
        assert fork != asked.pid
        asked.kill()
        assert asked.stdout.read() == ""
    deadline = time.monotonic() + 60
    while Path(f"/proc/{fork}").exists():
        assert time.monotonic() < deadline
        time.sleep(0.01)


@pytest.mark.usefixtures("new_interpreter")
def test_a_new_interpreter_has_imported_nothing():
    done = python("-c", "import sys; print('keras' in sys.modules)")
    assert done.stdout == "False\n"
