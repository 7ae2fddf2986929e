"""What was run, and all that its monitors recorded."""

from dataclasses import dataclass

from kerasmem.records.gradient import Finding, GradientRecord
from kerasmem.records.memory import MemoryRecord
from kerasmem.records.plain import JsonRecord
from kerasmem.records.post_mortem import PostMortem
from kerasmem.records.timeline import Timeline


@dataclass(frozen=True)
class RunInfo(JsonRecord):
    """What a monitor knows of the run that it watches.

    Args:
        model: name of the model.
        parameters: number of its weights' entries, 0 if it was not built yet.
        weight_bytes: bytes of its weights in RAM, 0 if it was not built yet.
        backend: name of the Keras backend.
        versions: versions by package name: keras, the backend, kerasmem.
        started: when the fit began, ISO 8601 with time zone.
        processes: number of processes that train together.
    """

    model: str
    parameters: int
    weight_bytes: int
    backend: str
    versions: dict[str, str]
    started: str
    processes: int


@dataclass(frozen=True)
class Run:
    """All that the monitors of one run recorded; what is empty was not watched.

    Args:
        info: what was run, None if nobody said.
        memory: readings of every process, in the order in which each took them.
        gradients: one record per epoch, of the first process: the gradients that reach
            the update are the same in all.
        findings: what the monitors of every process noticed.
        timelines: one per allocator and window of steps.
        post_mortems: one per time that memory ran out, of every process.
        notes: what could not be read, in words.
        name: name of the run's folder, `""` without one.
    """

    info: RunInfo | None = None
    memory: tuple[MemoryRecord, ...] = ()
    gradients: tuple[GradientRecord, ...] = ()
    findings: tuple[Finding, ...] = ()
    timelines: tuple[Timeline, ...] = ()
    post_mortems: tuple[PostMortem, ...] = ()
    notes: tuple[str, ...] = ()
    name: str = ""
