"""The head of a run's folder, whichever monitor comes first."""

import os
from dataclasses import replace
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import Any

import keras

from kerasmem import backends
from kerasmem.files.atomic import replacing
from kerasmem.files.run_dir import file_name
from kerasmem.graph.values import nbytes
from kerasmem.records import RunInfo
from kerasmem.records.plain import MOST_BYTES
from kerasmem.records.regular import read_regular


def begin_run(log_dir: str | os.PathLike[str] | None, model: Any) -> None:
    """Write `run.json` into the run's folder, unless there is one already.

    Only process 0 of several does so.

    Args:
        log_dir: the folder, made if it is not there; None for no folder.
        model: the model that is about to run.

    Raises:
        OSError: if it cannot be written.
    """
    if log_dir is None:
        return
    process, processes = backends.current().processes(model)
    path = Path(log_dir) / file_name("run", ".json")
    if process or path.exists():
        return
    path.parent.mkdir(parents=True, exist_ok=True)
    with replacing(path, follow_link=False) as temporary:
        temporary.write_text(_info(model, processes).to_json(), encoding="utf-8")


def complete_run(log_dir: str | os.PathLike[str] | None, model: Any) -> None:
    """Write the size of the model into `run.json`, if it was not built at the begin.

    TensorFlow builds a model without an `Input` only in its first step.

    Args:
        log_dir: the folder, None for no folder.
        model: the model that `begin_run` was given.

    Raises:
        OSError: if it cannot be read or written.
    """
    if log_dir is None or not model.built or backends.current().processes(model)[0]:
        return
    path = Path(log_dir) / file_name("run", ".json")
    info = RunInfo.from_json(read_regular(path, MOST_BYTES).decode())
    if info.parameters or info.model != model.name:
        return  # of another fit that wrote into the same folder
    with replacing(path, follow_link=False) as temporary:
        complete = replace(info, **_size(model))
        temporary.write_text(complete.to_json(), encoding="utf-8")


def _size(model: Any) -> dict[str, int]:
    return {
        "parameters": model.count_params() if model.built else 0,
        "weight_bytes": sum(nbytes(variable) for variable in model.weights),
    }


def _info(model: Any, processes: int) -> RunInfo:
    backend = keras.backend.backend()
    return RunInfo(
        model=model.name,
        **_size(model),
        backend=backend,
        versions={name: version(name) for name in ("keras", backend, "kerasmem")},
        started=datetime.now(UTC).astimezone().isoformat(timespec="seconds"),
        processes=processes,
    )
