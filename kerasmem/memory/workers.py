"""Memory of all processes of a training, and the values added to `logs`."""

import math
import os
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

from kerasmem.errors import InputError
from kerasmem.files.run_dir import file_name
from kerasmem.records import MemoryRecord, own_allocators
from kerasmem.records.regular import open_regular
from kerasmem.units import to_mib


class RunFolderReader:
    """Reads new records of the other processes from the run folder.

    No process waits for another, so a deadlock is impossible. For a slower process, the
    newest record can be from an earlier epoch.
    """

    def __init__(
        self, log_dir: str | os.PathLike[str], process: int, processes: int
    ) -> None:
        self._files = {
            index: _Growing(Path(log_dir) / file_name("memory", ".jsonl", index))
            for index in range(processes)
            if index != process
        }

    def newest(self) -> dict[int, MemoryRecord | None]:
        """Return the newest end-of-epoch record per process."""
        return {index: file.newest() for index, file in self._files.items()}


class _Growing:
    """A file to which another process appends records."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._read_bytes = path.stat().st_size if path.exists() else 0
        self._newest: MemoryRecord | None = None

    def newest(self) -> MemoryRecord | None:
        for line in self._new_lines():
            # A worker with a full disk may have left an incomplete line.
            with suppress(InputError):
                record = MemoryRecord.from_json(line)
                if record.batch is None and record.phase == "train":
                    self._newest = record
        return self._newest

    def _new_lines(self) -> list[str]:
        if not self._path.exists():
            return []
        with open_regular(self._path) as file:
            file.seek(self._read_bytes)
            new = file.read()
        # The text after the last line break is still being written.
        whole = new[: new.rfind(b"\n") + 1]
        self._read_bytes += len(whole)
        return whole.decode(errors="replace").splitlines()


_DEVICE_FIGURES = {"device_peak": "peak_bytes", "device": "current_bytes"}


def series(records: Mapping[int, MemoryRecord | None]) -> dict[str, float]:
    """Return the largest value of each figure in MiB, and sums for several devices.

    `device_peak_mib`, `device_mib` and `host_peak_mib` are the maxima over devices and
    processes. With more than one device or process, sums such as `device_peak_sum_mib`
    are added. An allocator that devices share counts once. Sums are NaN until every
    process has a record. Devices without memory counters are ignored.

    Example:
        >>> from kerasmem.records import DeviceReading
        >>> reading = DeviceReading("GPU:0", 1024**2, 2 * 1024**2, True)
        >>> series({0: MemoryRecord(0, None, (reading,), None)})
        {'device_peak_mib': 2.0, 'device_mib': 1.0}
    """
    present = [record for record in records.values() if record]
    devices = [device for record in present for device in record.counted]
    hosts = [record.host.peak_bytes for record in present if record.host]
    several = len(records) > 1
    values: dict[str, float] = {}
    for key, figure in _DEVICE_FIGURES.items():
        values |= _largest(key, [getattr(device, figure) for device in devices])
        if several or len(devices) > 1:
            values |= _sum(key, [getattr(d, figure) for d in own_allocators(devices)])
    values |= _largest("host_peak", hosts)
    if several:
        values |= _sum("host_peak", hosts)
    if len(present) < len(records):
        values |= {key: math.nan for key in values if "_sum_" in key}
    return values


def _largest(key: str, sizes: list[int]) -> dict[str, float]:
    return {f"{key}_mib": to_mib(max(sizes))} if sizes else {}


def _sum(key: str, sizes: list[int]) -> dict[str, float]:
    return {f"{key}_sum_mib": to_mib(sum(sizes))} if sizes else {}
