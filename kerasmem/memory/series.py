"""Series of a run's memory, over the devices of one process or of several."""

import math
from collections.abc import Iterable, Mapping

from kerasmem.records import DeviceReading, MemoryRecord
from kerasmem.units import to_mib

_DEVICE_FIGURES = {"device_peak": "peak_bytes", "device": "current_bytes"}


def series(records: Mapping[int, MemoryRecord | None]) -> dict[str, float]:
    """Return the largest figure, and the sum if there are several, in MiB.

    `device_peak_mib`, `device_mib` and `host_peak_mib` are the largest over devices
    and processes. With more than one device or process there is a sum of each, such
    as `device_peak_sum_mib`; an allocator that devices share counts once in it. As
    long as a process has told nothing the sums are NaN.

    Args:
        records: the newest record of each process by its index, None for a process
            that has told nothing yet.

    Example:
        >>> reading = DeviceReading("GPU:0", 1024**2, 2 * 1024**2, True)
        >>> series({0: MemoryRecord(0, None, (reading,), None)})
        {'device_peak_mib': 2.0, 'device_mib': 1.0}
    """
    told = [record for record in records.values() if record]
    devices = [device for record in told for device in record.devices]
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
