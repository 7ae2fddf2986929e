"""Log files of a monitor, and protection of the training from its failures."""

import logging
import math
import os
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import Any

import keras
import numpy as np

from kerasmem import backends
from kerasmem.errors import KerasMemWarning
from kerasmem.files.atomic import replacing
from kerasmem.files.run_dir import Journal, file_name
from kerasmem.graph.values import nbytes
from kerasmem.records import Finding, RunInfo
from kerasmem.records.plain import JsonRecord
from kerasmem.types import Model


def warn(text: str) -> None:
    """Warn with `text`. If warnings are errors, log it instead."""
    try:
        warnings.warn(text, KerasMemWarning, stacklevel=3)
    except KerasMemWarning:
        logging.getLogger("kerasmem").warning(text)


class Guard:
    """Converts the first failure of a monitor to a warning and ignores later ones.

    A monitor never interrupts the training.
    """

    def __init__(self, who: str) -> None:
        self._who = who
        self._has_warned = False

    @contextmanager
    def __call__(self, doing: str) -> Iterator[None]:
        """Return a context that suppresses exceptions and warns about the first."""
        try:
            yield
        except Exception as error:  # noqa: BLE001 - no failure may stop the training
            reason = f"{type(error).__name__}: {error}"
            self.warn(f"{self._who} could not {doing}: {reason}. Training continues.")

    def warn(self, text: str) -> None:
        """Warn with `text`, unless this guard has already warned."""
        if not self._has_warned:
            self._has_warned = True
            warn(text)


class RunLog:
    """Writes the records of a monitor to the folder of the run, if there is one."""

    def __init__(self, log_dir: str | os.PathLike[str] | None, guard: Guard) -> None:
        self._log_dir = log_dir
        self._guard = guard
        self._journals: dict[str, Journal] = {}
        self.process, self.processes = 0, 1
        self._start: datetime | None = None

    def find_process(self, model: Model) -> None:
        """Set the index of this process. Each process has separate files."""
        self.process, self.processes = backends.current().processes(model)
        self._journals = {}

    def begin(self, model: Model) -> None:
        """Write `run.json` for a built model, unless it exists.

        TensorFlow builds a model without an `Input` only in its first step. Monitors
        therefore call this method again after each epoch. The start of the run is the
        first call.
        """
        self._start = self._start or datetime.now(UTC)
        with self._guard("write run.json"):
            begin_run(self._log_dir, model, self._start)

    def append(self, stem: str, record: JsonRecord) -> None:
        """Append a record to the file with a stem such as `"memory"`."""
        if stem not in self._journals:
            name = file_name(stem, ".jsonl", self.process)
            self._journals[stem] = Journal(self._log_dir, name)
        self._journals[stem].append(record.to_json())

    def add_findings(self, findings: Sequence[Finding], known: list[Finding]) -> None:
        """Add findings to the known ones and to the file, or raise `OSError`."""
        known += findings
        for finding in findings:
            self.append("findings", finding)


_LOSSES = ("loss", "val_loss")
_OTHERS = ("learning_rate", "device_", "host_", "gradient_")
"""Prefixes of keys in `logs` that are not metrics of the model."""


def epoch_figures(logs: Mapping[str, Any] | None) -> dict[str, Any]:
    """Return the loss, validation loss and metrics in `logs` for a record.

    Values that are not finite numbers are omitted.
    """
    numbers = {
        name: float(value)
        for name, value in (logs or {}).items()
        if isinstance(value, int | float | np.number) and math.isfinite(value)
    }
    losses = {name: numbers.pop(name) for name in _LOSSES if name in numbers}
    metrics = {n: v for n, v in numbers.items() if not n.startswith(_OTHERS)}
    return {**losses, "metrics": metrics}


def begin_run(
    log_dir: str | os.PathLike[str] | None,
    model: Model,
    start: datetime | None = None,
) -> None:
    """Write `run.json` of a built model once. Only process 0 writes.

    `start` is now by default.
    """
    if log_dir is None or not model.built:
        return
    process, processes = backends.current().processes(model)
    path = Path(log_dir) / file_name("run", ".json")
    if process or path.exists():
        return
    path.parent.mkdir(parents=True, exist_ok=True)
    backend = keras.backend.backend()
    start = (start or datetime.now(UTC)).astimezone()
    info = RunInfo(
        model=model.name,
        parameters=model.count_params(),
        weight_bytes=sum(nbytes(variable) for variable in model.weights),
        backend=backend,
        versions={name: version(name) for name in ("keras", backend, "kerasmem")},
        started=start.isoformat(timespec="seconds"),
        processes=processes,
    )
    with replacing(path, follow_link=False) as temporary:
        temporary.write_text(info.to_json(), encoding="utf-8")
