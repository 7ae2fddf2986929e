"""Logs a run to experiment trackers: TensorBoard, MLflow or W&B.

The scalars are figures per device, per batch and per variable.
"""

import importlib
import importlib.util
import math
import os
import re
import time
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import fields
from itertools import groupby
from pathlib import Path
from typing import Any

from kerasmem.backends.tensorflow_files import write_events
from kerasmem.errors import ConfigError, OutputError
from kerasmem.files.atomic import replacing
from kerasmem.records import DeviceReading, HostReading, MemoryRecord, Run, Scalar
from kerasmem.report.run.epochs import continued, placed
from kerasmem.report.run.gradients import MEASURES
from kerasmem.units import to_mib

_MOST_METRICS = 1000
"""Limit of one request in MLflow's REST API."""
_MOST_LETTERS = 250
_AXES = {True: "kerasmem/batch", False: "kerasmem/epoch"}


def run_scalars(run: Run) -> dict[int, list[Scalar]]:
    """Returns the scalars by process. Process 0 includes the gradients.

    Sizes are in MiB. The step of an epoch is its index from 0. The step of a batch is
    the number of preceding batches.
    """
    by_process = {0: list(_gradient_scalars(run))}
    for process in {record.process for record in run.memory}:
        own = [record for record in run.memory if record.process == process]
        by_process[process] = [*by_process.get(process, []), *_memory_scalars(own)]
    return by_process


def _memory_scalars(records: Sequence[MemoryRecord]) -> Iterator[Scalar]:
    batches = 1 + max((r.batch for r in records if r.batch is not None), default=0)
    for place, record in placed(records):
        if record.batch is None:
            yield from _reading_scalars(record, "memory", round(place) - 1)
        else:
            step = round(place * batches) - 1
            yield from _reading_scalars(record, "memory_by_batch", step)
    outside = [r for r in records if r.phase in {"evaluate", "predict"}]
    for step, record in enumerate(outside):
        yield from _reading_scalars(record, "memory", step)


def _reading_scalars(record: MemoryRecord, room: str, step: int) -> Iterator[Scalar]:
    phase = "" if record.phase == "train" else f"{record.phase}/"
    readings: dict[str, DeviceReading | HostReading] = {
        device.name: device for device in record.counted
    }
    if record.host is not None:
        readings["host"] = record.host
    for name, reading in readings.items():
        for field in fields(reading):
            value = getattr(reading, field.name)
            if field.name.endswith("_bytes") and value is not None:
                tag = f"{room}/{phase}{name}/{field.name.removesuffix('_bytes')}_mib"
                yield Scalar(tag, step, record.time, to_mib(value))


def _gradient_scalars(run: Run) -> Iterator[Scalar]:
    steps = continued(record.epoch for record in run.gradients)
    for step, record in zip(steps, run.gradients, strict=True):
        figures = {
            f"gradients/{name}": getattr(record, name)
            for name in ("norm", "norm_max", "norm_last", "nonfinite_steps")
        }
        for variable in record.variables:
            figures |= {
                f"gradients/{variable.path}/{name}": getattr(variable, name)
                for name in MEASURES
            }
        for tag, value in figures.items():
            if value is not None and math.isfinite(value):
                yield Scalar(tag, step, record.time, value)


def check_trackers(targets: Mapping[str, Any]) -> None:
    """Raise `ConfigError` unless the packages of the trackers are installed."""
    for name in sorted(targets.keys() - {"tensorboard"}):
        spec = importlib.util.find_spec(name)
        # Python takes W&B's output folder `wandb` for a package.
        if spec is None or spec.origin is None:
            raise ConfigError(
                f"Logging needs the package {name}. Expected: the package is installed "
                f"(pip install kerasmem[{name}]). Received: no module {name!r}."
            )


def logged(run: Run, page: Path, name: str, target: str | Path) -> int:
    """Log a run and its page to one tracker. Returns the number of scalars."""
    scalars = run_scalars(run)
    TRACKERS[name](scalars, page, str(target), run.name)
    return sum(map(len, scalars.values()))


Scalars = Mapping[int, Sequence[Scalar]]
"""Scalars of each process by its index."""


def _to_tensorboard(scalars: Scalars, page: Path, target: str, name: str) -> None:
    del page, name  # TensorBoard shows no files and names a run after its folder
    for process, own in scalars.items():
        folder = Path(target, f"process-{process}" if process else "")
        try:
            folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise OutputError(
                f"Cannot create the folder {str(folder)!r}: {error.strerror or error}."
            ) from error
        file = folder / f"events.out.tfevents.{int(time.time())}.kerasmem"
        with replacing(file) as temporary:
            write_events(temporary, own)


def _to_mlflow(scalars: Scalars, page: Path, target: str, name: str) -> None:
    mlflow: Any = importlib.import_module("mlflow")
    client = mlflow.MlflowClient()
    known_experiment = client.get_experiment_by_name(target)
    experiment = (
        known_experiment.experiment_id
        if known_experiment
        else client.create_experiment(target)
    )
    new_name = None if os.environ.get("MLFLOW_RUN_ID") else name
    with mlflow.start_run(experiment_id=experiment, run_name=new_name) as run:
        number = run.info.run_id
        metrics = [
            mlflow.entities.Metric(
                _allowed(_tag(one, process)), one.value, round(1e3 * one.time), one.step
            )
            for process, own in scalars.items()
            for one in own
        ]
        for start in range(0, len(metrics), _MOST_METRICS):
            client.log_batch(number, metrics=metrics[start : start + _MOST_METRICS])
        client.log_artifact(number, str(page))


def _to_wandb(scalars: Scalars, page: Path, target: str, name: str) -> None:
    """Log to the run of `WANDB_RUN_ID`, or to a new run.

    W&B has one step counter per run, which cannot decrease. Figures therefore use two
    separate axes, `kerasmem/epoch` and `kerasmem/batch`.
    """
    wandb: Any = importlib.import_module("wandb")
    new_name = None if os.environ.get("WANDB_RUN_ID") else name
    with wandb.init(project=target, name=new_name) as run:
        for axis in _AXES.values():
            run.define_metric(axis, hidden=True)
        for process, own in scalars.items():
            for tag, axis in {_tag(one, process): _axis(one) for one in own}.items():
                run.define_metric(tag, step_metric=axis)
            for (axis, step), together in groupby(sorted(own, key=_place), key=_place):
                values = {_tag(one, process): one.value for one in together}
                run.log({axis: step, **values})
        artifact = re.sub(r"[^\w.-]", "_", page.stem, flags=re.ASCII)
        run.log_artifact(str(page), name=artifact, type="report")


TRACKERS: Mapping[str, Callable[[Scalars, Path, str, str], None]] = {
    "tensorboard": _to_tensorboard,
    "mlflow": _to_mlflow,
    "wandb": _to_wandb,
}
"""Loggers by package name, which is also the option name of `kerasmem report`."""


def _allowed(tag: str) -> str:
    parts = re.sub(r"[^\w\-. /]", "_", tag, flags=re.ASCII).split("/")
    name = "/".join(part for part in parts if part not in ("", ".", ".."))
    if len(name) <= _MOST_LETTERS:
        return name or "_"
    return f"{name[: _MOST_LETTERS - 9].rstrip('./')}-{zlib.crc32(name.encode()):08x}"


def _tag(scalar: Scalar, process: int) -> str:
    return f"process-{process}/{scalar.tag}" if process else scalar.tag


def _axis(scalar: Scalar) -> str:
    return _AXES[scalar.tag.startswith("memory_by_batch/")]


def _place(scalar: Scalar) -> tuple[str, int]:
    return _axis(scalar), scalar.step
