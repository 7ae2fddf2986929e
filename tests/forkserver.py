"""Children that start in a moment: forks of a process that has imported all before.

An import of TensorFlow, Keras and kerasmem takes five seconds, and some hundred tests
need a process of their own. While tests run, `sys.executable` is a script that asks a
fork server for `python -c`, `-m` and `SCRIPT`, and hands it its environment, folder
and standard streams. There is one server for each environment that imports depend on;
it has only imported, so each fork begins its backend by itself. Whatever else is asked
of the script goes to the interpreter, as does everything within `new_interpreter`.
"""

import array
import contextlib
import fcntl
import gc
import importlib
import json
import multiprocessing
import os
import runpy
import select
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import types
import warnings
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

FOLDER, PYTHON, SESSION = "FORKSERVER_FOLDER", "FORKSERVER_PYTHON", "FORKSERVER_SESSION"
_LAZY = ("TF_CPU_", "TF_NUM_", "TF_CPP_", "TF_CONFIG", "XLA_FLAGS")
"""What is read from the environment when a backend begins, not when it is imported."""
_READ_BY_IMPORTS = ("TF_", "XLA_", "OMP_", "KERAS_", "PYTHONHASHSEED")
_LOOK_SECONDS = 5.0


def begin() -> Callable[[], None]:
    """Make the folder of the servers of a test run; return what removes it."""
    folder = tempfile.mkdtemp(prefix="forks-")
    os.environ |= {FOLDER: folder, PYTHON: sys.executable, SESSION: str(os.getpid())}
    script = Path(folder, "python")
    script.write_text(f'#!/bin/sh\nexec "${PYTHON}" -ISE {__file__} "$@"\n')
    script.chmod(0o700)
    return lambda: shutil.rmtree(folder, ignore_errors=True)


def install() -> None:
    """Let `sys.executable` of this process be the script, until the process ends."""
    if not hasattr(os, "pidfd_open"):
        return  # not on Linux: each child is an interpreter
    # Its children inherit descriptors, of which a server knows nothing.
    multiprocessing.set_executable(sys.executable)
    sys.executable = str(Path(os.environ[FOLDER], "python"))


@contextlib.contextmanager
def new_interpreter():
    """Return a scope in which children are interpreters that have imported nothing."""
    forking = sys.executable
    sys.executable = os.environ.get(PYTHON, forking)
    try:
        yield
    finally:
        sys.executable = forking


def _parsed(arguments: list[str]) -> tuple[bool, bool, list[str]] | None:
    """Return whether -W ignore and -P are set, and the rest; None for no fork."""
    ignores = os.environ.get("PYTHONWARNINGS")
    if ignores not in (None, "", "ignore") or not os.environ.get("KERAS_BACKEND"):
        return None
    rest = list(arguments)
    while rest[:2] == ["-W", "ignore"]:
        ignores, rest = "ignore", rest[2:]
    is_safe = rest[:1] == ["-P"] and rest[1:2] in (["-c"], ["-m"])
    rest = rest[is_safe:]
    is_known = rest and (rest[0] in ("-c", "-m") or not rest[0].startswith("-"))
    return (bool(ignores), is_safe, rest) if is_known else None


def _client(arguments: list[str]) -> int:
    """Have a fork do what a command line says; return its status for the shell."""
    parsed = _parsed(arguments)
    if parsed is None or FOLDER not in os.environ:
        python = os.environ[PYTHON]
        os.execv(python, [python, *arguments])
    asked = {
        "arguments": parsed,
        "environment": dict(os.environ),
        "cwd": str(Path.cwd()),
    }
    with _server() as server:
        streams = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", [0, 1, 2]))]
        server.sendmsg([b"?"], streams)
        server.sendall(json.dumps(asked).encode() + b"\n")
        status = int(server.makefile().readline() or signal.SIGKILL)
    if os.WIFSIGNALED(status):
        signal.signal(signal.SIGINT, signal.SIG_DFL)
        os.kill(os.getpid(), os.WTERMSIG(status))
    return os.waitstatus_to_exitcode(status)


def _server() -> socket.socket:
    """Return a connection with the server of this environment, which is begun by it."""
    backend = os.environ["KERAS_BACKEND"]
    names = _READ_BY_IMPORTS + ("JAX_",) * (backend == "jax")
    kept = {
        name: value
        for name, value in os.environ.items()
        if name.startswith(names) and not name.startswith(_LAZY)
    }
    folder = Path(os.environ[FOLDER])
    key = "-".join(f"{name}={value}" for name, value in sorted(kept.items()))
    path = folder / f"{zlib.crc32(key.encode()):08x}.socket"
    with (folder / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        connection = socket.socket(socket.AF_UNIX)
        with contextlib.suppress(OSError):
            connection.connect(str(path))
            return connection
        path.unlink(missing_ok=True)
        with socket.socket(socket.AF_UNIX) as listening:
            listening.bind(str(path))
            listening.listen()
            root = Path(__file__).parents[1]
            paths = f"{root}:{os.environ.get('PYTHONPATH', '')}".strip(":")
            with path.with_suffix(".log").open("wb") as log:
                subprocess.Popen(
                    [os.environ[PYTHON], "-P", __file__, str(listening.fileno())],
                    env=os.environ | {"PYTHONPATH": paths},
                    cwd=root,
                    pass_fds=[listening.fileno()],
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=log,
                    start_new_session=True,
                )
        connection.connect(str(path))
        return connection


class _Server:
    """A process that has imported, and the forks that it has not yet seen end."""

    def __init__(self, listening: socket.socket) -> None:
        self._listening = listening
        self._forks: dict[int, tuple[int, socket.socket]] = {}

    def serve(self, session: int) -> dict[str, Any] | None:
        """Return, in a fork, what it is asked for; None when the session has ended."""
        while Path(f"/proc/{session}").exists():
            links = [link for _, link in self._forks.values()]
            watched = [self._listening, *self._forks, *links]
            ready, _, _ = select.select(watched, [], [], _LOOK_SECONDS)
            if self._listening in ready:
                asked = self._forked()
                if asked is not None:
                    return asked
            for watch, (child, link) in list(self._forks.items()):
                if watch in ready:
                    self._reap(watch)
                elif link in ready:  # who asked is gone
                    os.kill(child, signal.SIGKILL)
        for child, _ in self._forks.values():
            os.kill(child, signal.SIGKILL)
        return None

    def _forked(self) -> dict[str, Any] | None:
        """Fork; return in the fork what it is asked for."""
        link, _ = self._listening.accept()
        _, streams, _, _ = socket.recv_fds(link, 1, 3)
        with link.makefile() as lines:
            line = lines.readline()
        child = os.fork() if line else None  # who asked may be gone by now
        if child != 0:
            for stream in streams:
                os.close(stream)
            if child:
                self._forks[os.pidfd_open(child)] = child, link
            return None
        for each in (self._listening, link, *(one for _, one in self._forks.values())):
            each.close()
        for number, stream in enumerate(streams):
            os.dup2(stream, number)
            os.close(stream)
        return json.loads(line)

    def _reap(self, watch: int) -> None:
        child, link = self._forks.pop(watch)
        os.close(watch)
        _, status = os.waitpid(child, 0)
        with link, contextlib.suppress(OSError):
            link.sendall(f"{status}\n".encode())


def _become(asked: dict[str, Any]) -> None:
    """Do in a fork what an interpreter would that was started so."""
    os.chdir(asked["cwd"])
    os.environ.clear()
    os.environ.update(asked["environment"])
    install()
    ignores, is_safe, (what, *rest) = asked["arguments"]
    if ignores:
        warnings.simplefilter("ignore")
    first = {"-c": "", "-m": asked["cwd"]}.get(what, str(Path(what).resolve().parent))
    paths = os.environ.get("PYTHONPATH", "").split(os.pathsep)
    sys.path[:0] = [first] * (not is_safe) + [path for path in paths if path]
    if what == "-c":
        sys.argv = ["-c", *rest[1:]]
        module = sys.modules["__main__"] = types.ModuleType("__main__")
        exec(compile(rest[0], "<string>", "exec"), vars(module))
    elif what == "-m":
        sys.argv = rest
        runpy.run_module(rest[0], run_name="__main__", alter_sys=True)
    else:
        sys.argv = [what, *rest]
        runpy.run_path(what, run_name="__main__")


def _main() -> None:
    if sys.flags.isolated:
        sys.exit(_client(sys.argv[1:]))
    for name in ("keras", "kerasmem.public", "kerasmem.processes"):
        importlib.import_module(name)
    gc.collect()
    gc.freeze()  # or every collection of a fork would copy what all share
    server = _Server(socket.socket(fileno=int(sys.argv[1])))
    asked = server.serve(int(os.environ[SESSION]))
    if asked is not None:
        _become(asked)


if __name__ == "__main__":
    _main()
