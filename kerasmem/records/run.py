"""Records of a training run: memory, gradients, findings."""

import math
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Annotated

from kerasmem.records.memory_plan import PlanRecord
from kerasmem.records.plain import JsonRecord, OrNaN
from kerasmem.records.post_mortem import PostMortem
from kerasmem.records.timeline import Timeline


@dataclass(frozen=True)
class DeviceReading:
    """Memory in use on one device, as reported by the framework's allocator.

    Args:
        name: Name of the device in the framework, such as `"GPU:0"`.
        current_bytes: Bytes in use at the time of the reading.
        peak_bytes: Peak bytes in use since the last reset.
        peak_was_reset: Whether the backend can reset the peak. If `False`, `peak_bytes`
            covers the whole process.
        complete: `False` if the allocator does not count small requests.
        first_step_peak_bytes: Peak of the first step of a fit, in which a backend may
            benchmark algorithms. `None` in later epochs.
        later_peak_bytes: Peak of the first epoch without its first step. `None` in
            later epochs.
        reserved_bytes: Size of the allocator's pool, or `None` if unknown.
        largest_free_bytes: Largest free block in the pool, or `None` if unknown.
        card_used_bytes: Bytes in use on the card by all processes. `None` without NVML.
        card_total_bytes: Memory of the card. `None` without NVML.
        shares_with: Name of the device with the same allocator, or `None`. Both
            readings count the same bytes.
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
        """Whether the reading is a measurement.

        A peak of zero is no measurement if the allocator skips small requests.
        """
        return self.complete or self.peak_bytes > 0

    @property
    def fragmentation(self) -> float | None:
        """Fraction of the free pool bytes outside the largest free block, in [0, 1]."""
        if self.reserved_bytes is None or self.largest_free_bytes is None:
            return None
        free = self.reserved_bytes - self.current_bytes
        return (free - self.largest_free_bytes) / free if free > 0 else 0.0


def own_allocators(devices: Iterable[DeviceReading]) -> list[DeviceReading]:
    """Returns one reading per allocator, so that no byte is counted twice."""
    return [device for device in devices if device.shares_with is None]


@dataclass(frozen=True)
class HostReading:
    """Resident memory of this process.

    Args:
        rss_bytes: Resident bytes at the time of the reading.
        peak_bytes: Peak resident bytes since the last reset.
        peak_source: `"kernel"` if the kernel has a peak that can be reset. `"sampled"`
            if a thread reads the resident memory every few milliseconds.
        input_bytes: Bytes in use in the framework's host allocator while a device
            trains, or `None` if unknown. The input pipeline owns nearly all of them.
    """

    rss_bytes: int
    peak_bytes: int
    peak_source: str
    input_bytes: int | None = None


@dataclass(frozen=True)
class MemoryRecord(JsonRecord):
    """One reading of a `MemoryMonitor`.

    Args:
        epoch: Index of the epoch, from 0.
        batch: Index of the batch in the epoch, or `None` at the end of an epoch.
        devices: One reading per device. Empty if the backend reports none.
        host: Memory of the process, or `None` with `host=False`.
        phase: `"train"`, `"validation"` (within a fit), `"evaluate"` or `"predict"`.
        process: Index of the process. Defaults to 0.
        time: Seconds since 1970 (UTC).
        loss: Training loss at the end of an epoch, or `None` if missing or not finite.
        val_loss: Validation loss at the end of an epoch, or `None`.
        metrics: Finite metrics in `logs` at the end of an epoch, by name.
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
        """Devices whose reading is a measurement."""
        return tuple(device for device in self.devices if device.counts)


@dataclass(frozen=True)
class VariableGradient:
    """Statistics of the gradient of one variable over the sampled steps of an epoch.

    Args:
        path: Path of the variable, such as `"dense/kernel"`.
        steps: Number of sampled steps.
        norm: Mean L2 norm over the sampled steps with a finite norm, or NaN.
        norm_max: Largest finite L2 norm, or NaN.
        norm_last: L2 norm in the last sampled step, or NaN if not finite.
        max_abs: Largest absolute value in the sampled steps with a finite norm.
        zero_fraction: Mean fraction of exact zeros, in [0, 1].
        nonfinite: Number of NaN and infinite entries.
        update_ratio: Mean ratio of the L2 norms of the update and the variable before
            the update, or `None` if unknown. Covers the first update of a fit and each
            update after a sampled step. Large variables are subsampled evenly, which
            can miss the sparse updates of an embedding.
        gradient_bytes: Bytes of the gradient, in files of earlier versions.
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
    """Statistics of one epoch, recorded by a `GradientMonitor`.

    Args:
        epoch: Index of the epoch, from 0.
        steps: Number of optimizer updates, without steps skipped by loss scaling.
        norm: Mean global L2 norm over the updates with a finite norm, or NaN.
        norm_max: Largest finite global L2 norm, or NaN.
        nonfinite_steps: Number of steps with NaN or infinity in the gradient, including
            steps skipped by loss scaling.
        variables: Statistics per variable. Empty with `per_variable=False`.
        norm_last: Global L2 norm of the last update, or NaN if not finite.
        sampled_steps: Indices of the updates with statistics per variable, from 0 in
            each epoch.
        gradient_bytes: Bytes of all gradients, in files of earlier versions.
        own_bytes: Bytes of the monitor's state on the device.
        time: Seconds since 1970 (UTC).
        norm_first: Global L2 norm of the first update, or NaN if not finite.
        loss: Training loss in `logs`, or `None` if missing or not finite.
        val_loss: Validation loss in `logs`, or `None` if missing or not finite.
        learning_rate: Learning rate of the last update, or `None` if unknown.
        metrics: Finite metrics in `logs`, by name.
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
"""Severities of findings, most severe first: the training is lost, at risk, or only
notable."""


@dataclass(frozen=True)
class Finding(JsonRecord):
    """A problem or remarkable observation, reported once.

    Args:
        kind: Kind of the finding, such as `"leak"` or `"vanishing gradient"`.
        text: One or two sentences with names and figures.
        epoch: Index of the epoch of the finding, from 0.
        layer: Path of the layer, or `None` for no layer or several layers.
        monitor: Class name of the callback.
        severity: One of `SEVERITIES`. Defaults to `"warning"`.
        layers: Paths of all layers concerned, in the order of the model.
    """

    kind: str
    text: str
    epoch: int
    layer: str | None
    monitor: str
    severity: Annotated[str, SEVERITIES] = "warning"
    layers: tuple[str, ...] = ()


def gravest_first(findings: Iterable[Finding]) -> tuple[Finding, ...]:
    """Returns findings sorted by severity. The sort is stable."""
    return tuple(sorted(findings, key=lambda one: SEVERITIES.index(one.severity)))


@dataclass(frozen=True)
class RunInfo(JsonRecord):
    """Description of a monitored run.

    Args:
        model: Name of the model.
        parameters: Number of weight entries, or 0 before the model is built.
        weight_bytes: Bytes of the weights in RAM, or 0 before the model is built.
        backend: Name of the Keras backend.
        versions: Versions of keras, the backend and kerasmem, by package name.
        started: Start of the fit, in ISO 8601 with time zone.
        processes: Number of training processes.
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
    """All records of one run. Fields are empty if they were not monitored.

    Args:
        info: Description of the run, or `None` if missing.
        memory: Readings of all processes, in order per process.
        gradients: One record per epoch, from the first process. The aggregated
            gradients are equal in all processes.
        findings: Findings of all processes.
        timelines: One timeline per allocator and window of steps.
        post_mortems: One post-mortem per out-of-memory error, from all processes.
        plans: Memory plans of `km.fit`, in order.
        notes: Messages about unreadable records.
        name: Name of the run directory, or `""`.
    """

    info: RunInfo | None = None
    memory: tuple[MemoryRecord, ...] = ()
    gradients: tuple[GradientRecord, ...] = ()
    findings: tuple[Finding, ...] = ()
    timelines: tuple[Timeline, ...] = ()
    post_mortems: tuple[PostMortem, ...] = ()
    plans: tuple[PlanRecord, ...] = ()
    notes: tuple[str, ...] = ()
    name: str = ""


@dataclass(frozen=True)
class Scalar:
    """One point of a time series.

    Args:
        tag: Name of the series, such as `"memory/GPU:0/peak_mib"`.
        step: Index of the epoch or batch, from 0.
        time: Seconds since 1970 (UTC).
        value: The value.
    """

    tag: str
    step: int
    time: float
    value: float
