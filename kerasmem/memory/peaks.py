"""Reads memory in use and the peaks of nested time intervals."""

import threading
import time
import weakref
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Literal

from kerasmem import backends
from kerasmem.memory.nvidia import read_card
from kerasmem.processes.host import HostPeak
from kerasmem.records import DeviceReading, HostReading, MemoryRecord

Phase = Literal["train", "validation", "evaluate", "predict"]

_HOST = "host"
_LATER = "later"
_LOCK = threading.RLock()
"""Shared by all readers, because one reset affects the peaks of every reader."""


class Peaks:
    """Tracks the memory peaks of named time intervals.

    `reset_devices` returns `False` if peaks cannot be reset.
    """

    def __init__(
        self,
        read_devices: Callable[[], tuple[DeviceReading, ...]],
        reset_devices: Callable[[], bool],
        host: HostPeak | None,
    ) -> None:
        self._read_devices = read_devices
        self._reset_devices = reset_devices
        self._host = host
        self._open: dict[str, dict[str, int]] = {}
        self._was_reset = False

    def begin(self, stretch: str) -> None:
        """Start or restart the peaks of `stretch`. Other intervals continue."""
        with _LOCK:
            self._open.pop(stretch, None)
            if self._open:
                self._look()
            self._was_reset = self._reset_devices()
            if self._host:
                self._host.reset()
            self._open[stretch] = {}

    def read(
        self, stretch: str
    ) -> tuple[tuple[DeviceReading, ...], HostReading | None]:
        """Return readings with the peaks since the start of `stretch`."""
        with _LOCK:
            devices, host = self._look()
            peaks = self._open.get(stretch, {})
        if host:
            host = replace(host, peak_bytes=peaks.get(_HOST, host.peak_bytes))
        return tuple(
            replace(
                device,
                peak_bytes=peaks.get(device.name, device.peak_bytes),
                peak_was_reset=self._was_reset,
            )
            for device in devices
        ), host

    def take_over(self) -> None:
        """Store the peaks so far, before other code resets them."""
        with _LOCK:
            if self._open:
                self._look()

    def end(self, stretch: str) -> None:
        """Discard the peaks of `stretch`."""
        with _LOCK:
            self._open.pop(stretch, None)

    def close(self) -> None:
        """Stop measuring."""
        with _LOCK:
            self._open.clear()
        if self._host:
            self._host.close()

    def _look(self) -> tuple[tuple[DeviceReading, ...], HostReading | None]:
        devices = self._read_devices()
        host = self._host.read() if self._host else None
        peak_by_name = {device.name: device.peak_bytes for device in devices}
        if host:
            peak_by_name[_HOST] = host.peak_bytes
        for peaks in self._open.values():
            for name, peak in peak_by_name.items():
                peaks[name] = max(peak, peaks.get(name, 0))
        return devices, host


class MemoryReader:
    """Reads the memory in use, with the peaks of an epoch and its phases.

    Peaks are counted per process. The reader therefore stores them before other code
    resets them, until the reader is closed or deleted or the run has ended. `host` is
    closed with the reader. `is_over` returns whether the run has ended without
    notification.
    """

    def __init__(
        self, host: HostPeak | None, process: int, is_over: Callable[[], bool]
    ) -> None:
        backend = backends.current()
        self._backend = backend
        self._peaks = Peaks(backend.device_memory, backend.reset_device_peak, host)
        self._process = process
        self._ordinals = backend.cuda_ordinals()
        self._first_step_peaks: dict[str, int] = {}
        self._is_over = is_over
        self._failure: Exception | None = None
        observer = partial(_take_over, weakref.ref(self))
        self._unobserve = weakref.finalize(self, backend.observe_peak_resets(observer))
        self._unobserve.atexit = False

    def begin(self, phase: Phase) -> None:
        """Start the peaks of a phase. `"train"` restarts in every epoch."""
        self._failure = None
        if phase == "train":
            self._first_step_peaks = {}
            self._peaks.end(_LATER)
        self._peaks.begin(phase)

    def end(self, phase: Phase) -> None:
        """Discard the peaks of a phase."""
        self._peaks.end(phase)

    def end_first_step(self) -> None:
        """Store the peaks of the first step, and restart for later steps."""
        devices, _ = self._peaks.read("train")
        self._peaks.begin(_LATER)
        self._first_step_peaks = {device.name: device.peak_bytes for device in devices}

    def record(self, epoch: int, batch: int | None, phase: Phase) -> MemoryRecord:
        """Return the memory in use and the peaks since the phase began."""
        if self._failure:
            raise self._failure
        devices, host = self._peaks.read(phase)
        if phase == "train" and self._first_step_peaks:
            later, _ = self._peaks.read(_LATER)
            devices = tuple(map(self._apart, devices, later))
        if host:
            host = replace(host, input_bytes=self._backend.input_bytes())
        return MemoryRecord(
            epoch=epoch,
            batch=batch,
            devices=tuple(map(self._with_card, devices)),
            host=host,
            phase=phase,
            process=self._process,
            time=time.time(),
        )

    def close(self) -> None:
        """Stop measuring."""
        self._unobserve()
        self._peaks.close()

    def take_over(self) -> None:
        """Store the peaks so far, before other code resets them."""
        if self._is_over():
            self.close()
            return
        try:
            self._peaks.take_over()
        except Exception as error:  # noqa: BLE001 - the next reading raises it
            self._failure = error

    def _apart(self, device: DeviceReading, later: DeviceReading) -> DeviceReading:
        return replace(
            device,
            first_step_peak_bytes=self._first_step_peaks.get(device.name),
            later_peak_bytes=later.peak_bytes if later.peak_was_reset else None,
        )

    def _with_card(self, device: DeviceReading) -> DeviceReading:
        ordinal = self._ordinals.get(device.name)
        card = None if ordinal is None else read_card(ordinal)
        if card is None:
            return device
        return replace(
            device, card_used_bytes=card.used_bytes, card_total_bytes=card.total_bytes
        )


def _take_over(reader: "weakref.ref[MemoryReader]") -> None:
    alive = reader()
    if alive is not None:
        alive.take_over()
