"""A task in a process of its own: another backend, another allocator, a real crash."""

import importlib
import importlib.util
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import keras

from kerasmem import errors
from kerasmem.errors import ConfigError, KerasMemError

_QUIET = {"TF_CPP_MIN_LOG_LEVEL": "3"}
ON_THE_CPU = {"CUDA_VISIBLE_DEVICES": "-1", "JAX_PLATFORMS": "cpu"}
"""Environment of a child that leaves the GPU to its parent."""


class ChildDiedError(KerasMemError):
    """The child process ended without an answer; the message says how."""


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
                env=_environment(backend, environment or {}),
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
            raise ChildDiedError(_why_dead(task, ended))
        return _answer(json.loads(answer.read_text(encoding="utf-8")))


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


def _environment(backend: str, more: Mapping[str, str]) -> dict[str, str]:
    # The child finds the modules that the parent finds.
    paths = os.pathsep.join(path or str(Path.cwd()) for path in sys.path)
    return {
        **os.environ,
        **_QUIET,
        "KERAS_BACKEND": backend,
        "PYTHONPATH": paths,
        **more,
    }


def _answer(content: dict[str, Any]) -> dict[str, Any]:
    if "error" in content:
        raise getattr(errors, content["error"], KerasMemError)(content["message"])
    return content["result"]


def _why_dead(task: str, ended: subprocess.CompletedProcess[str]) -> str:
    lines = [line for line in ended.stderr.splitlines() if line.strip()]
    how = f"signal {-ended.returncode}" if ended.returncode < 0 else "an error"
    return (
        f"The child process for {task.partition(':')[0]} ended by {how}. Expected: an "
        f"answer. Received: {lines[-1] if lines else 'nothing on stderr'}"
    )
