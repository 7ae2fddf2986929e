"""Resident memory of this process, and its peak since a reset."""

import functools
import mmap
import os
import re
import threading
import weakref
from collections.abc import Callable
from pathlib import Path

import psutil

from kerasmem.records import HostReading
from kerasmem.units import MIB

STATUS = Path("/proc/self/status")
CLEAR_REFS = Path("/proc/self/clear_refs")
SAMPLE_SECONDS = 0.005

_PROBE_BYTES = 32 * MIB


def resident_bytes() -> int:
    """Return the resident bytes of this process."""
    return _process(os.getpid()).memory_info().rss


def host_peak(is_needed: Callable[[], bool]) -> "HostPeak":
    """Return the kernel's peak if it can be reset, otherwise a sampled peak.

    The sampling thread calls `is_needed` every second and ends if the result is False.
    An interrupted run therefore leaves no thread.
    """
    return KernelPeak() if kernel_peak_works() else SampledPeak(is_needed)


class KernelPeak:
    """Exact peak counted by the Linux kernel, without overhead.

    A process has only one kernel peak. Before a reset, the peak is saved in all other
    readers.
    """

    def __init__(self) -> None:
        self._before = 0
        with _KERNEL_LOCK:
            _KERNEL_READERS.add(self)

    def reset(self) -> None:
        """Restart the peak at the current resident bytes."""
        with _KERNEL_LOCK:
            peak = _high_water_bytes()
            for reader in _KERNEL_READERS:
                reader._before = max(reader._before, peak)
            CLEAR_REFS.write_text("5", encoding="ascii")
            self._before = 0

    def read(self) -> HostReading:
        """Return the current and the peak resident bytes."""
        with _KERNEL_LOCK:
            rss = resident_bytes()
            peak = max(rss, _high_water_bytes(), self._before)
            return HostReading(rss, peak, "kernel")

    def close(self) -> None:
        """Stop saving peaks in this reader."""
        with _KERNEL_LOCK:
            _KERNEL_READERS.discard(self)


_KERNEL_LOCK = threading.Lock()
_KERNEL_READERS: "weakref.WeakSet[KernelPeak]" = weakref.WeakSet()


class SampledPeak:
    """Peak measured by a thread every few milliseconds.

    A shorter spike can be missed, and also a spike while the thread is blocked.
    """

    def __init__(self, is_needed: Callable[[], bool]) -> None:
        self._is_needed = is_needed
        self._lock = threading.Lock()
        self._peak = resident_bytes()
        self._closed = threading.Event()
        self._thread = threading.Thread(
            target=self._sample, name="kerasmem-host-peak", daemon=True
        )
        self._thread.start()

    def reset(self) -> None:
        """Restart the peak at the current resident bytes."""
        with self._lock:
            self._peak = resident_bytes()

    def read(self) -> HostReading:
        """Return the current and the peak resident bytes."""
        with self._lock:
            rss = self._look()
            return HostReading(rss, self._peak, "sampled")

    def close(self) -> None:
        """End the thread."""
        self._closed.set()
        self._thread.join()

    def _look(self) -> int:
        rss = resident_bytes()
        self._peak = max(self._peak, rss)
        return rss

    def _sample(self) -> None:
        samples = 0
        while not self._closed.wait(SAMPLE_SECONDS):
            with self._lock:
                self._look()
            samples += 1
            if samples % round(1 / SAMPLE_SECONDS) == 0 and not self._is_needed():
                return


HostPeak = KernelPeak | SampledPeak
"""Peak resident bytes since the last `reset()`."""


@functools.cache
def kernel_peak_works() -> bool:
    """Return whether the kernel counts a peak that this process may reset.

    Tested once with 32 MiB, because a container may reject or ignore the reset.
    """
    try:
        with mmap.mmap(-1, _PROBE_BYTES) as block:
            block.write(bytes(_PROBE_BYTES))
        before = _high_water_bytes()
        CLEAR_REFS.write_text("5", encoding="ascii")
        after = _high_water_bytes()
    except (OSError, ValueError):
        return False
    return before - after >= _PROBE_BYTES // 2


@functools.cache
def _process(pid: int) -> psutil.Process:
    return psutil.Process(pid)


def _high_water_bytes() -> int:
    match = re.search(r"VmHWM:\s*(\d+) kB", STATUS.read_text(encoding="ascii"))
    if match is None:
        raise ValueError(
            f"Expected a line of the form 'VmHWM: N kB' in {STATUS}. Received: no "
            "match. Next: use SampledPeak on this system."
        )
    return int(match[1]) * 1024
