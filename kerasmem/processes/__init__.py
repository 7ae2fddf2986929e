"""Runs tasks in child processes: another backend or allocator, or a crash."""

import importlib
import importlib.util
import json
import math
import os
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from itertools import takewhile
from pathlib import Path
from typing import Any

import cloudpickle
import keras

from kerasmem import errors
from kerasmem.backends.exhaustion import complaint, is_out_of_memory
from kerasmem.errors import (
    ChildDiedError,
    ConfigError,
    KerasMemError,
    first_line,
    text_of,
)

_ERROR = re.compile(r"[\w.]*(Error|Exception|Interrupt)\b.*:")
_OUT_OF_MEMORY = re.compile("OutOfMemoryError|ResourceExhaustedError|MemoryError")
_NO_CAUSE = re.compile(
    r'File "|Detected at node|\[\[\{|\[Op:|Traceback|During handling'
)
_LINES, _REASON = 50, 1_000
_LOOK_SECONDS = 0.5
_SECONDS_TO_END = 30.0
_QUIET = {"TF_CPP_MIN_LOG_LEVEL": "3"}
ON_THE_CPU = {"CUDA_VISIBLE_DEVICES": "-1", "JAX_PLATFORMS": "cpu"}
"""Environment variables of a child that leave the GPU to its parent."""


def run_in_child(
    task: str,
    job: Mapping[str, Any],
    *,
    backend: str,
    environment: Mapping[str, str] | None = None,
    seconds: float | None = None,
    doing: str = "",
) -> dict[str, Any]:
    """Return the result of `task(job)` in a new process.

    Args:
        task: `"module:function"`. The function takes and returns a dict; the result
            must be JSON.
        job: Argument of the function. Classes and functions of the main script are
            copied.
        backend: Keras backend of the child.
        environment: Additional environment variables. Defaults to none.
        seconds: Time limit in seconds. Defaults to no limit.
        doing: Step for messages, such as `"Measuring batch size 256"`. Defaults to
            `task`.

    Raises:
        TimeoutError: If the time limit was exceeded and the child was killed.
        ConfigError: If the backend is not installed or the job cannot be pickled.
        KerasMemError: If the task raised it, with the same class.
        ChildDiedError: If the child ended in another way.
    """
    if importlib.util.find_spec(backend) is None:
        raise ConfigError(
            f"The task needs Keras's {backend} backend. Expected: the package is "
            f"installed (pip install {backend}). Received: no module {backend!r}."
        )
    with tempfile.TemporaryDirectory(prefix="kerasmem-child-") as folder:
        order, answer = Path(folder, "order"), Path(folder, "answer.json")
        settings = {
            "floatx": keras.config.floatx(),
            "image_data_format": keras.config.image_data_format(),
        }
        content = {"task": task, "settings": settings, "job": job}
        try:
            order.write_bytes(cloudpickle.dumps(content))
        except Exception as error:
            raise cannot_go("model", job.get("model"), error) from error
        content_of_answer = answer_of_child(
            ["-m", __name__, str(order), str(answer)],
            doing or task,
            answer,
            environment={"KERAS_BACKEND": backend, **(environment or {})},
            seconds=seconds,
        )
        return _answer(json.loads(content_of_answer))


def answer_of_child(
    arguments: Sequence[str],
    name: str,
    answer: Path,
    *,
    environment: Mapping[str, str],
    seconds: float | None = None,
    is_shown: bool = False,
) -> bytes:
    """Return the content of a file that a new Python process writes.

    Args:
        arguments: Arguments of the Python command line.
        name: Step for messages, such as `"Measuring batch size 256"`.
        answer: Path of the file. The child moves the complete file there and exits. A
            child that does not exit, such as because of a thread, is killed.
        environment: Additional environment variables.
        seconds: Time limit in seconds. Defaults to no limit.
        is_shown: Whether to show the output of the child. Defaults to False.

    Raises:
        TimeoutError: If the time limit was exceeded and the child was killed.
        ChildDiedError: If the child ended without the file.
    """
    log_path = answer.with_name("stderr")
    stdout = None if is_shown else subprocess.DEVNULL
    with log_path.open("wb") as log:
        # A fork would lack the framework's threads. Without -P, the current folder
        # would come first on the path.
        process = subprocess.Popen(
            [sys.executable, "-P", *arguments],
            env=child_environment(environment),
            stdin=subprocess.DEVNULL,
            stdout=stdout,
            stderr=None if is_shown else log,
        )
        try:
            _wait(process, answer, seconds)
        except subprocess.TimeoutExpired as error:
            raise TimeoutError(f"{name} took more than {seconds:.0f} seconds.") from (
                error
            )
        finally:
            process.kill()  # no effect if the process has ended
            process.wait()
    if not answer.exists():
        stderr = log_path.read_text(encoding="utf-8", errors="replace")
        raise death(name, process.returncode, stderr)
    return answer.read_bytes()


def _wait(
    process: subprocess.Popen[bytes], answer: Path, seconds: float | None
) -> None:
    until = math.inf if seconds is None else time.monotonic() + seconds
    while not answer.exists():
        remaining = until - time.monotonic()
        try:
            process.wait(max(0.0, min(remaining, _LOOK_SECONDS)))
        except subprocess.TimeoutExpired:
            if remaining <= _LOOK_SECONDS:
                raise
        else:
            return
    with suppress(subprocess.TimeoutExpired):
        process.wait(_SECONDS_TO_END)


def run_script(
    script: Path,
    *arguments: str,
    doing: str = "",
    environment: Mapping[str, str] | None = None,
) -> str:
    """Return the stdout of a script in a new process on the CPU.

    The script must not import kerasmem, which imports Keras.

    Raises:
        ChildDiedError: If the script failed.
    """
    # Without -P, imports would first search the folder of the script.
    process = subprocess.run(
        [sys.executable, "-P", str(script), *arguments],
        env=child_environment({**ON_THE_CPU, **(environment or {})}),
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
    )
    if process.returncode:
        raise death(doing or script.stem, process.returncode, process.stderr)
    return process.stdout


def work(order: Path, answer: Path) -> None:
    """Run the task of `order` in the child and write the result."""
    # Safe to unpickle: the parent wrote the file in its temporary folder.
    content = cloudpickle.loads(order.read_bytes())
    keras.config.set_floatx(content["settings"]["floatx"])
    keras.config.set_image_data_format(content["settings"]["image_data_format"])
    module, _, function = content["task"].partition(":")
    try:
        result = getattr(importlib.import_module(module), function)(content["job"])
    except KerasMemError as error:
        result = {"error": type(error).__name__, "message": str(error)}
    else:
        result = {"result": result}
    write_answer(answer, json.dumps(result).encode())


def cannot_go(what: str, value: object, error: Exception) -> ConfigError:
    """Return the error for a value that cannot be pickled."""
    return ConfigError(
        f"The {what} cannot be sent to another process: {first_line(str(error))} "
        f"Expected: a value that can be pickled. Received: {type(value).__name__}. "
        "Next: pass and return arrays, numbers, paths, models or a History."
    )


def write_answer(answer: Path, content: bytes) -> None:
    """Write the answer in the child. The file appears only when complete."""
    part = answer.with_name(f"{answer.name}.part")
    part.write_bytes(content)
    part.replace(answer)


def child_environment(more: Mapping[str, str]) -> dict[str, str]:
    """Return the environment of a child with the import path of its parent."""
    paths = os.pathsep.join(path or str(Path.cwd()) for path in sys.path)
    return {**os.environ, **_QUIET, "PYTHONPATH": paths, **more}


def _answer(content: dict[str, Any]) -> dict[str, Any]:
    if "error" in content:
        raise getattr(errors, content["error"], KerasMemError)(content["message"])
    return content["result"]


def death(name: str, returncode: int, stderr: str) -> ChildDiedError:
    """Return the error for a child that ended without an answer.

    A negative `returncode` is a signal.
    """
    stderr = text_of(RuntimeError(stderr))  # without terminal codes
    lines = [line.strip() for line in stderr.splitlines() if line.strip()]
    starts = [number for number, line in enumerate(lines) if _ERROR.match(line)]
    last = lines[starts[-1] :] if starts else lines[-1:] or ["no output on stderr"]
    text = "\n".join(last)
    how = f"signal {-returncode}" if returncode < 0 else "an error"
    if _OUT_OF_MEMORY.search(last[0]) or is_out_of_memory(RuntimeError(text)):
        ending, reason = "ran out of memory", complaint(text)[:_REASON]
    else:
        ending = f"was killed by {how}" if returncode < 0 else "failed"
        reason = _reason(last)
    return ChildDiedError(
        f"{name} {ending}. Received: {reason.rstrip('.')}. Next: read the `stderr` "
        "attribute of this error, the last lines of the process.",
        how=how,
        reason=reason,
        stderr="\n".join(lines[-_LINES:]),
    )


def _reason(lines: Sequence[str]) -> str:
    """Return the last error as one line: its first line, and its cause if long."""
    # Keras lists the arguments of the call last.
    lines = [*takewhile(lambda line: "Arguments received" not in line, lines)]
    if len(lines) > 3:  # TensorFlow lists the origin of the operation first
        causes = [line for line in lines[1:] if not _NO_CAUSE.search(line)]
        lines = [lines[0], *causes[-1:]]
    return " ".join(lines)[:_REASON]
