"""Peaks of stretches of time that lie within each other, out of one peak.

An allocator keeps one peak, and all that can be done is to start it anew. So every
stretch that is open takes the peak over before a new one begins, here or elsewhere.
"""

import threading
from collections.abc import Callable
from dataclasses import replace

from kerasmem.processes.host import HostPeak
from kerasmem.records import DeviceReading, HostReading

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
