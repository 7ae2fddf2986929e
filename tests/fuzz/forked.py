"""Work in a forked process with a limit of memory and time."""

import json
import os
import resource
import signal
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import NoReturn

from tests.fuzz.outcome import Outcome

MOST_BYTES = 6 << 30
MOST_SECONDS = 20


def forked(
    work: Callable[[], Outcome], folder: Path, seconds: int = MOST_SECONDS
) -> tuple[Outcome, int]:
    """Return the outcome of work in a child, and the highest resident memory in bytes.

    Args:
        work: Function to call in the child.
        folder: Working directory of the child.
        seconds: Limit of CPU time. The limit of wall time is 1.5 times as long.
    """
    answer, question = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(answer)
        _run_in_child(work, folder, question, seconds)
    os.close(question)
    end = time.monotonic() + 1.5 * seconds
    usage, status, word = None, 0, "crash"
    while usage is None:
        pid, status, rusage = os.wait4(child, os.WNOHANG)
        if pid:
            usage = rusage
        elif time.monotonic() > end:
            os.kill(child, signal.SIGKILL)
            end, word = float("inf"), "hang"
        else:
            time.sleep(0.005)
    with os.fdopen(answer, "rb") as pipe:
        content = pipe.read()
    most = usage.ru_maxrss * 1024
    if content:
        return Outcome(**json.loads(content)), most
    number = os.WTERMSIG(status) if os.WIFSIGNALED(status) else 0
    if number == signal.SIGXCPU:
        word = "hang"
    reason = signal.Signals(number).name if number else os.WEXITSTATUS(status)
    return Outcome(word, str(reason)), most


def _run_in_child(
    work: Callable[[], Outcome], folder: Path, question: int, seconds: int
) -> NoReturn:
    os.chdir(folder)
    resource.setrlimit(resource.RLIMIT_DATA, (MOST_BYTES, MOST_BYTES))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    most = int(time.process_time()) + seconds + 1
    resource.setrlimit(resource.RLIMIT_CPU, (most, resource.RLIM_INFINITY))
    warnings.simplefilter("ignore")
    os.write(question, json.dumps(work().to_json()).encode())
    os._exit(0)
