"""Peaks of stretches of time that lie within each other, and the series of a run."""

import math
import threading
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace

from kerasmem.processes.host import HostPeak
from kerasmem.records import DeviceReading, HostReading, MemoryRecord
from kerasmem.units import to_mib

_HOST = "host"
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
        seen = {device.name: device.peak_bytes for device in devices}
        if host:
            seen[_HOST] = host.peak_bytes
        for peaks in self._open.values():
            for name, peak in seen.items():
                peaks[name] = max(peak, peaks.get(name, 0))
        return devices, host


_DEVICE_FIGURES = {"device_peak": "peak_bytes", "device": "current_bytes"}


def series(records: Mapping[int, MemoryRecord | None]) -> dict[str, float]:
    """Return the largest figure, and the sum if there are several, in MiB.

    `device_peak_mib`, `device_mib` and `host_peak_mib` are the largest over devices
    and processes. With more than one device or process there is a sum of each, such
    as `device_peak_sum_mib`; an allocator that devices share counts once in it. As
    long as a process has told nothing the sums are NaN. A device of which nothing was
    counted has no part in them.

    Args:
        records: the newest record of each process by its index, None for a process
            that has told nothing yet.

    Example:
        >>> reading = DeviceReading("GPU:0", 1024**2, 2 * 1024**2, True)
        >>> series({0: MemoryRecord(0, None, (reading,), None)})
        {'device_peak_mib': 2.0, 'device_mib': 1.0}
    """
    told = [record for record in records.values() if record]
    devices = [device for record in told for device in record.counted]
    hosts = [record.host.peak_bytes for record in told if record.host]
    several = len(records) > 1
    found: dict[str, float] = {}
    for key, figure in _DEVICE_FIGURES.items():
        found |= _largest(key, [getattr(device, figure) for device in devices])
        if several or len(devices) > 1:
            found |= _sum(key, [getattr(d, figure) for d in _own_allocators(devices)])
    found |= _largest("host_peak", hosts)
    if several:
        found |= _sum("host_peak", hosts)
    if len(told) < len(records):
        found |= {key: math.nan for key in found if "_sum_" in key}
    return found


def _own_allocators(devices: Iterable[DeviceReading]) -> list[DeviceReading]:
    return [device for device in devices if device.shares_with is None]


def _largest(key: str, sizes: list[int]) -> dict[str, float]:
    return {f"{key}_mib": to_mib(max(sizes))} if sizes else {}


def _sum(key: str, sizes: list[int]) -> dict[str, float]:
    return {f"{key}_sum_mib": to_mib(sum(sizes))} if sizes else {}
