"""What was run, and what its monitors recorded: memory, gradients, findings."""

import math
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Annotated

from kerasmem.records.plain import JsonRecord, OrNaN
from kerasmem.records.post_mortem import PostMortem
from kerasmem.records.timeline import Timeline


@dataclass(frozen=True)
class DeviceReading:
    """Bytes in use on one device, from the framework's own allocator.

    Args:
        name: the framework's name of the device, such as `"GPU:0"`.
        current_bytes: bytes in use at the time of the reading.
        peak_bytes: most bytes in use since the peak was last reset.
        peak_was_reset: False where the backend cannot reset the peak: then
            `peak_bytes` is the peak of the whole process.
        complete: False where the allocator leaves small requests out.
        first_step_peak_bytes: peak of the first step of the fit, in which a backend
            may try out algorithms; None in every other epoch.
        later_peak_bytes: peak of the epoch without the first step; None where
            `first_step_peak_bytes` is.
        reserved_bytes: bytes of the allocator's pool, in use or not; None if unknown.
        largest_free_bytes: largest free block in the pool; None if unknown.
        card_used_bytes: bytes in use on the whole card, by every process; None
            without NVML.
        card_total_bytes: bytes of the card; None without NVML.
        shares_with: name of the device whose allocator this one shares, so that both
            readings are of the same bytes; None for an allocator of its own.
    """

    name: str
    current_bytes: int
    peak_bytes: int
    peak_was_reset: bool
    complete: bool = True
    first_step_peak_bytes: int | None = None
    later_peak_bytes: int | None = None
    reserved_bytes: int | None = None
    largest_free_bytes: int | None = None
    card_used_bytes: int | None = None
    card_total_bytes: int | None = None
    shares_with: str | None = None

    @property
    def counts(self) -> bool:
        """Whether the figures are a measurement.

        Zero is none where small requests are left out and there were no others.
        """
        return self.complete or self.peak_bytes > 0

    @property
    def fragmentation(self) -> float | None:
        """Share of the pool's free bytes outside of its largest free block, 0 to 1."""
        if self.reserved_bytes is None or self.largest_free_bytes is None:
            return None
        free = self.reserved_bytes - self.current_bytes
        return (free - self.largest_free_bytes) / free if free > 0 else 0.0


def own_allocators(devices: Iterable[DeviceReading]) -> list[DeviceReading]:
    """Return the readings that count each byte once: one for each allocator."""
    return [device for device in devices if device.shares_with is None]


@dataclass(frozen=True)
class HostReading:
    """Resident memory of this process.

    Args:
        rss_bytes: resident bytes at the time of the reading.
        peak_bytes: most resident bytes since the peak was last reset.
        peak_source: `"kernel"` where the kernel keeps a peak that can be reset,
            `"sampled"` where a thread looked every few milliseconds.
        input_bytes: bytes that the framework's host allocator has in use while a
            device trains, nearly all of them the input pipeline's; None where it
            cannot be told.
    """

    rss_bytes: int
    peak_bytes: int
    peak_source: str
    input_bytes: int | None = None


@dataclass(frozen=True)
class MemoryRecord(JsonRecord):
    """One reading of a `MemoryMonitor`.

    Args:
        epoch: index of the epoch, from 0.
        batch: index of the batch within the epoch, None for the epoch's end.
        devices: one reading per device; empty where the backend gives none.
        host: the process's own memory, None with `host=False`.
        phase: `"train"`, `"validation"` (inside of a fit), `"evaluate"` or
            `"predict"`.
        process: index of the process, 0 unless several train together.
        time: seconds since 1970 (UTC).
        loss: at the end of an epoch of training its loss in `logs`, None without one
            that is finite.
        val_loss: the same of its validation.
        metrics: at the end of an epoch the finite metrics in `logs`, by name.
    """

    epoch: int
    batch: int | None
    devices: tuple[DeviceReading, ...]
    host: HostReading | None
    phase: str = "train"
    process: int = 0
    time: float = 0.0
    loss: float | None = None
    val_loss: float | None = None
    metrics: dict[str, float] = field(default_factory=dict[str, float])

    @property
    def counted(self) -> tuple[DeviceReading, ...]:
        """The devices whose figures are a measurement."""
        return tuple(device for device in self.devices if device.counts)


@dataclass(frozen=True)
class VariableGradient:
    """Statistics of one variable's gradient over the sampled steps of an epoch.

    Args:
        path: path of the variable, such as `"dense/kernel"`.
        steps: number of sampled steps.
        norm: mean of the L2 norm over the sampled steps with a finite one; NaN if there
            is none.
        norm_max: largest of these norms, NaN if there is none.
        norm_last: the norm in the last sampled step, NaN if it was not finite.
        max_abs: largest absolute value in the sampled steps with a finite norm.
        zero_fraction: mean share of entries that are exactly zero, 0 to 1.
        nonfinite: number of NaN or infinite entries seen.
        update_ratio: mean of the L2 norm of an update over that of the variable before
            it, over the updates of the epoch that follow a sampled one, and a fit's
            first. Of a large variable evenly spaced entries are looked at, which the
            sparse updates of an embedding may miss. None if unknown.
        gradient_bytes: bytes of its gradient, as the backend holds it.
    """

    path: str
    steps: int
    norm: OrNaN
    max_abs: float
    zero_fraction: float
    nonfinite: int
    norm_max: OrNaN = math.nan
    norm_last: OrNaN = math.nan
    update_ratio: float | None = None
    gradient_bytes: int = 0


@dataclass(frozen=True)
class GradientRecord(JsonRecord):
    """One epoch of a `GradientMonitor`.

    Args:
        epoch: index of the epoch, from 0.
        steps: number of updates that the optimizer made; a step that loss scaling
            skipped is none.
        norm: mean of the global L2 norm over the updates with a finite one; NaN if
            there is none.
        norm_max: largest finite global L2 norm, NaN if there is none.
        nonfinite_steps: number of steps whose gradient held NaN or infinity, those
            that loss scaling skipped included.
        variables: per-variable statistics; empty with `per_variable=False`.
        norm_last: global L2 norm of the last update, NaN if it was not finite.
        sampled_steps: numbers of the updates with per-variable statistics, from 0 at
            the epoch's begin.
        gradient_bytes: bytes of all gradients of one step together.
        own_bytes: bytes that the monitor's own state takes on the device.
        time: seconds since 1970 (UTC).
        norm_first: global L2 norm of the first update, NaN if it was not finite.
        loss: the epoch's loss in `logs`, None without one that is finite.
        val_loss: the same of its validation.
        learning_rate: that of the last update; None if unknown.
        metrics: the epoch's finite metrics in `logs`, by name.
    """

    epoch: int
    steps: int
    norm: OrNaN
    norm_max: OrNaN
    nonfinite_steps: int
    variables: tuple[VariableGradient, ...] = ()
    norm_last: OrNaN = math.nan
    sampled_steps: tuple[int, ...] = ()
    gradient_bytes: int = 0
    own_bytes: int = 0
    time: float = 0.0
    norm_first: OrNaN = math.nan
    loss: float | None = None
    val_loss: float | None = None
    learning_rate: float | None = None
    metrics: dict[str, float] = field(default_factory=dict[str, float])


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
    severity: Annotated[str, SEVERITIES] = "warning"
    layers: tuple[str, ...] = ()


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


@dataclass(frozen=True)
class Scalar:
    """One point of one series.

    Args:
        tag: name of the series, such as `"memory/GPU:0/peak_mib"`.
        step: of the epoch, or of the batch, from 0.
        time: seconds since 1970 (UTC).
        value: the number.
    """

    tag: str
    step: int
    time: float
    value: float
