"""Memory in use, with the peaks of stretches of time that lie within each other."""

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
"""One for all readers: each may have all others take over what it resets."""


class Peaks:
    """Readings whose peak is that of a named stretch of time.

    Args:
        read_devices: returns a reading per device, with the peak since the last reset.
        reset_devices: starts new peaks; False if that cannot be done.
        host: the process's own peak, None to leave it out.
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
        """Start the peaks of `stretch` anew; those of other stretches go on."""
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
        """Return readings whose peaks are those since `stretch` began."""
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
        """Keep the peaks so far: somebody else is about to start them anew."""
        with _LOCK:
            if self._open:
                self._look()

    def end(self, stretch: str) -> None:
        """Forget `stretch`."""
        with _LOCK:
            self._open.pop(stretch, None)

    def close(self) -> None:
        """End the measurement."""
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
    """Reads the memory in use, with the peaks of an epoch and of what lies in it.

    The peaks are the process's: before anybody else resets them, such as another
    monitor or the user's own code, the reader takes them over. It does so until it is
    closed or gone, or its model no longer runs.

    Args:
        host: the process's own peak, None to leave it out; closed with the reader.
        process: index of this process.
        is_over: whether the run that is measured has ended without a word.
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
        """Start the peaks of a phase; of `"train"` at every epoch's begin."""
        self._failure = None
        if phase == "train":
            self._first_step_peaks = {}
            self._peaks.end(_LATER)
        self._peaks.begin(phase)

    def end(self, phase: Phase) -> None:
        """Forget a phase."""
        self._peaks.end(phase)

    def end_first_step(self) -> None:
        """Keep the peaks so far apart from those of the epoch's later steps."""
        devices, _ = self._peaks.read("train")
        self._peaks.begin(_LATER)
        self._first_step_peaks = {device.name: device.peak_bytes for device in devices}

    def record(self, epoch: int, batch: int | None, phase: Phase) -> MemoryRecord:
        """Return what is in use now, and the peaks since the phase began."""
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
        """End the measurement."""
        self._unobserve()
        self._peaks.close()

    def take_over(self) -> None:
        """Keep the peaks so far: somebody else is about to start them anew."""
        if self._is_over():
            self.close()
            return
        try:
            self._peaks.take_over()
        except Exception as error:  # noqa: BLE001 - told by the next reading
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
