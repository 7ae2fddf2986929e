"""A task in a process of its own: another backend, another allocator, a real crash."""

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
"""Environment of a child that leaves the GPU to its parent."""


def run_in_child(
    task: str,
    job: Mapping[str, Any],
    *,
    backend: str,
    environment: Mapping[str, str] | None = None,
    seconds: float | None = None,
    doing: str = "",
) -> dict[str, Any]:
    """Return what `task` returns for `job` in a fresh process.

    Args:
        task: `"module:function"`; the function takes a dict, and returns one for JSON.
        job: Its argument. Classes and functions of the running script are copied.
        backend: the Keras backend of the child.
        environment: more environment variables for it.
        seconds: how long it may take; None for as long as it takes.
        doing: The step for messages, such as `"Measuring batch size 256"`; empty for
            the name of the task.

    Raises:
        TimeoutError: if it took longer, and was ended.
        ConfigError: if that backend is not installed, or the job cannot be pickled.
        KerasMemError: of the same class as in the child, if the task raised one.
        ChildDiedError: if it ended in any other way.
    """
    if importlib.util.find_spec(backend) is None:
        raise ConfigError(
            f"This asks for Keras's {backend} backend. Expected: the package is "
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
    """Return what a fresh Python process writes to a file.

    Args:
        arguments: of its command line.
        name: The step for messages, such as `"Measuring batch size 256"`.
        answer: path of the file, which it puts there whole and then ends. One that
            does not end, such as for a thread of its own, is ended.
        environment: more environment variables for it.
        seconds: how long it may take; None for as long as it takes.
        is_shown: whether the user sees what it prints.

    Raises:
        TimeoutError: if it took longer, and was ended.
        ChildDiedError: if it ended without an answer.
    """
    log_path = answer.with_name("stderr")
    stdout = None if is_shown else subprocess.DEVNULL
    with log_path.open("wb") as log:
        # A new interpreter, no fork: a framework's threads would be missing in one.
        # Without -P the current folder would come first on its path.
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
            process.kill()  # of one that has ended: nothing
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
    """Return what a script writes to stdout in a fresh process, on the CPU.

    Args:
        script: path of one that imports nothing of kerasmem, which would import Keras.
        *arguments: those of its command line.
        doing: The step for messages, such as `"Measuring the exported file"`; empty
            for the name of the script.
        environment: more environment variables for it.

    Raises:
        ChildDiedError: if it ended by an error.
    """
    # Without -P its folder would be where its imports are looked for first.
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
    """Do, in the child, what `order` says, and write the answer."""
    # The parent wrote this file a moment ago, in a folder of its own.
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
    """Return the error for a value that cannot be pickled.

    Args:
        what: What it is used for.
        value: The value.
        error: The cause.
    """
    return ConfigError(
        f"The {what} cannot go to another process: {first_line(str(error))} Expected: "
        f"what can be pickled. Received: {type(value).__name__}. Next: pass and return "
        "arrays, numbers, paths, models or a History."
    )


def write_answer(answer: Path, content: bytes) -> None:
    """Write, in the child, the answer, which is there when it is whole.

    Args:
        answer: path of the file.
        content: what is in it.
    """
    part = answer.with_name(f"{answer.name}.part")
    part.write_bytes(content)
    part.replace(answer)


def child_environment(more: Mapping[str, str]) -> dict[str, str]:
    """Return the environment of a child, which finds the modules of its parent.

    Args:
        more: variables besides.
    """
    paths = os.pathsep.join(path or str(Path.cwd()) for path in sys.path)
    return {**os.environ, **_QUIET, "PYTHONPATH": paths, **more}


def _answer(content: dict[str, Any]) -> dict[str, Any]:
    if "error" in content:
        raise getattr(errors, content["error"], KerasMemError)(content["message"])
    return content["result"]


def death(name: str, returncode: int, stderr: str) -> ChildDiedError:
    """Return the error for a child that gave no answer.

    Args:
        name: The step, such as `"Measuring batch size 256"`.
        returncode: how it ended.
        stderr: what it wrote there, empty where the user saw it.
    """
    stderr = text_of(RuntimeError(stderr))  # without codes of a terminal
    lines = [line.strip() for line in stderr.splitlines() if line.strip()]
    starts = [number for number, line in enumerate(lines) if _ERROR.match(line)]
    last = lines[starts[-1] :] if starts else lines[-1:] or ["nothing on stderr"]
    text = "\n".join(last)
    how = f"signal {-returncode}" if returncode < 0 else "an error"
    if _OUT_OF_MEMORY.search(last[0]) or is_out_of_memory(RuntimeError(text)):
        ending, reason = "ran out of memory", complaint(text)[:_REASON]
    else:
        ending = f"was ended by {how}" if returncode < 0 else "failed"
        reason = _reason(last)
    return ChildDiedError(
        f"{name} {ending}. Received: {reason.rstrip('.')}. Next: read the `stderr` of "
        "this error, the last lines of the process.",
        how=how,
        reason=reason,
        stderr="\n".join(lines[-_LINES:]),
    )


def _reason(lines: Sequence[str]) -> str:
    """Return the error of a process in a line: its first line, and its cause if long.

    Args:
        lines: The lines from the last error on, not empty.
    """
    # Keras lists the arguments of the call last.
    lines = [*takewhile(lambda line: "Arguments received" not in line, lines)]
    if len(lines) > 3:  # TensorFlow lists where the operation was made first.
        causes = [line for line in lines[1:] if not _NO_CAUSE.search(line)]
        lines = [lines[0], *causes[-1:]]
    return " ".join(lines)[:_REASON]
