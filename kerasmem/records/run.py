"""What was run, and all that its monitors recorded and noticed."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Self

from kerasmem.errors import InputError
from kerasmem.records.gradient import GradientRecord
from kerasmem.records.memory import MemoryRecord
from kerasmem.records.plain import JsonRecord
from kerasmem.records.post_mortem import PostMortem
from kerasmem.records.timeline import Timeline

SEVERITIES = ("error", "warning", "note")
"""The gravest first: what was trained is lost, is in danger, or is worth knowing."""


@dataclass(frozen=True)
class Finding(JsonRecord):
    """One thing worth a person's attention, told once.

    Args:
        kind: what it is, such as `"leak"` or `"vanishing gradient"`.
        text: one or two sentences with names and figures.
        epoch: index of the epoch after which it was noticed, from 0.
        layer: path of the layer it is about, None if it is about none or several.
        monitor: class name of the callback that noticed it.
        severity: one of `SEVERITIES`.
        layers: paths of all layers it is about, in the order of the model.
    """

    kind: str
    text: str
    epoch: int
    layer: str | None
    monitor: str
    severity: str = "warning"
    layers: tuple[str, ...] = ()

    @classmethod
    def from_json(cls, text: str) -> Self:
        """Return the finding that `to_json` made `line` of.

        Raises:
            InputError: if it is none, or its severity none of `SEVERITIES`.
        """
        found = super().from_json(text)
        if found.severity not in SEVERITIES:
            raise InputError(
                f"A severity is one of {', '.join(SEVERITIES)}. Received: "
                f"severity={found.severity[:50]!r}."
            )
        return found


def gravest_first(findings: Iterable[Finding]) -> tuple[Finding, ...]:
    """Return findings by severity; those of one severity keep their order."""
    return tuple(sorted(findings, key=lambda one: SEVERITIES.index(one.severity)))


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
