"""Scalars of a run: per device, per batch and per variable."""

import math
from collections.abc import Iterator, Sequence
from dataclasses import fields

from kerasmem.records import DeviceReading, HostReading, MemoryRecord, Run, Scalar
from kerasmem.report.run.epochs import continued, placed
from kerasmem.report.run.gradients import MEASURES
from kerasmem.units import to_mib


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
