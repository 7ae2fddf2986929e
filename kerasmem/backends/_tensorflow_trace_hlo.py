"""A TensorFlow step for XLA, from shapes only."""

import os
import re
from pathlib import Path
from typing import Any

import tensorflow as tf

from kerasmem.backends.profile import Followed
from kerasmem.errors import ConfigError

_DUMP = re.compile(r"--xla_dump_to=(\S+)")
_TEMPORARY = re.compile(r"size (\d+), preallocated-temp")


def step_module(followed: Followed, batch: Any, *, training: bool) -> bytes:
    """Return the serialized `HloModuleProto` of a step, not optimized."""
    return _ir(followed, batch, training=training)(stage="hlo_serialized")


def compiled_bytes(followed: Followed, batch: Any, *, training: bool) -> int:
    """Return the temporary bytes that XLA plans for a step on this machine.

    Raises:
        ConfigError: if XLA was not told at its start to write down its plan.
    """
    folder = _DUMP.search(os.environ.get("XLA_FLAGS", ""))
    if folder is None:
        raise ConfigError(
            "XLA tells its plan only to a process that asked for it at its start. "
            "Expected: XLA_FLAGS='--xla_dump_to=FOLDER --xla_dump_hlo_as_text'. "
            f"Received: XLA_FLAGS={os.environ.get('XLA_FLAGS', '')!r}."
        )
    before = set(_plans(folder[1]))
    _ir(followed, batch, training=training)(stage="optimized_hlo")
    sizes = [
        int(size)
        for path in set(_plans(folder[1])) - before
        for size in _TEMPORARY.findall(path.read_text(encoding="utf-8"))
    ]
    return max(sizes, default=0)


def _plans(folder: str) -> list[Path]:
    return list(Path(folder).glob("*buffer-assignment.txt"))


def _ir(followed: Followed, batch: Any, *, training: bool) -> Any:
    model = followed.model
    step = model.train_step if training else model.predict_step

    # What is asked for the program takes tensors, and no nests of them.
    def flat_step(*tensors: Any) -> Any:
        return step(tf.nest.pack_sequence_as(batch, tensors))

    compiled = tf.function(flat_step, autograph=False, jit_compile=True)
    specs = [
        tf.TensorSpec(x.shape, tf.as_dtype(x.dtype)) for x in tf.nest.flatten(batch)
    ]
    return compiled.experimental_get_compiler_ir(*specs)
