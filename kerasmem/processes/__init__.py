"""A task in a process of its own: another backend, another allocator, a real crash."""

import importlib
import importlib.util
import itertools
import json
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import keras

from kerasmem import errors
from kerasmem.errors import ChildDiedError, ConfigError, KerasMemError

_ERROR = re.compile(r"[\w.]*(Error|Exception|Interrupt)\b.*:")
_LINES = 50
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
) -> dict[str, Any]:
    """Return what `task` returns for `job` in a fresh process.

    Args:
        task: `"module:function"`; the function takes and returns a dict for JSON.
        job: what it gets.
        backend: the Keras backend of the child.
        environment: more environment variables for it.
        seconds: how long it may take; None for as long as it takes.

    Raises:
        TimeoutError: if it took longer, and was ended.
        ConfigError: if that backend is not installed.
        KerasMemError: of the same class as in the child, if the task raised one.
        ChildDiedError: if it ended in any other way.
    """
    if importlib.util.find_spec(backend) is None:
        raise ConfigError(
            f"This asks for Keras's {backend} backend. Expected: the package is "
            f"installed (pip install {backend}). Received: no module {backend!r}."
        )
    with tempfile.TemporaryDirectory(prefix="kerasmem-child-") as folder:
        order, answer = Path(folder, "order.json"), Path(folder, "answer.json")
        settings = {
            "floatx": keras.config.floatx(),
            "image_data_format": keras.config.image_data_format(),
        }
        content = {"task": task, "settings": settings, "job": job}
        order.write_text(json.dumps(content), encoding="utf-8")
        try:
            ended = subprocess.run(
                [sys.executable, "-m", __name__, str(order), str(answer)],
                env=child_environment(
                    {"KERAS_BACKEND": backend, **(environment or {})}
                ),
                capture_output=True,
                text=True,
                check=False,
                timeout=seconds,
            )
        except subprocess.TimeoutExpired as error:
            raise TimeoutError(f"{task} took more than {seconds:.0f} seconds.") from (
                error
            )
        if not answer.exists():
            raise death(task.partition(":")[0], ended)
        return _answer(json.loads(answer.read_text(encoding="utf-8")))


def run_script(
    script: Path, *arguments: str, environment: Mapping[str, str] | None = None
) -> str:
    """Return what a script writes to stdout in a fresh process, on the CPU.

    Args:
        script: path of one that imports nothing of kerasmem, which would import Keras.
        *arguments: those of its command line.
        environment: more environment variables for it.

    Raises:
        ChildDiedError: if it ended by an error.
    """
    # Without -P its folder would be where its imports are looked for first.
    ended = subprocess.run(
        [sys.executable, "-P", str(script), *arguments],
        env=child_environment({**ON_THE_CPU, **(environment or {})}),
        capture_output=True,
        text=True,
        check=False,
    )
    if ended.returncode:
        raise death(script.stem, ended)
    return ended.stdout


def work(order: Path, answer: Path) -> None:
    """Do, in the child, what `order` says, and write the answer."""
    content = json.loads(order.read_text(encoding="utf-8"))
    keras.config.set_floatx(content["settings"]["floatx"])
    keras.config.set_image_data_format(content["settings"]["image_data_format"])
    module, _, function = content["task"].partition(":")
    try:
        result = getattr(importlib.import_module(module), function)(content["job"])
    except KerasMemError as error:
        result = {"error": type(error).__name__, "message": str(error)}
    else:
        result = {"result": result}
    answer.write_text(json.dumps(result), encoding="utf-8")


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


def death(name: str, ended: subprocess.CompletedProcess[str]) -> ChildDiedError:
    """Return the error for a child that gave no answer.

    Args:
        name: what it was for.
        ended: how it ended; its stderr is None where the user saw it.
    """
    stderr = ended.stderr or ""
    lines = [line.strip() for line in stderr.splitlines() if line.strip()]
    starts = [number for number, line in enumerate(lines) if _ERROR.match(line)]
    last = lines[starts[-1] :] if starts else lines[-1:] or ["nothing on stderr"]
    # Behind the error Keras lists what the call was given.
    last = itertools.takewhile(lambda line: "Arguments received" not in line, last)
    reason = " ".join(last)
    how = f"signal {-ended.returncode}" if ended.returncode < 0 else "an error"
    return ChildDiedError(
        f"A process of its own, for {name.rpartition('.')[2]}, ended by {how}. "
        f"Expected: an answer. Received: {reason.rstrip('.')}. Next: what it wrote at "
        "last is the `stderr` of this error.",
        how=how,
        reason=reason,
        stderr="\n".join(lines[-_LINES:]),
    )
