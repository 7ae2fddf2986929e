"""What was in use, on the devices and on the host, at one moment of a run."""

import json
from dataclasses import asdict, dataclass
from typing import Any


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
    """

    name: str
    current_bytes: int
    peak_bytes: int
    peak_was_reset: bool
    complete: bool = True


@dataclass(frozen=True)
class HostReading:
    """Resident memory of this process.

    Args:
        rss_bytes: resident bytes at the time of the reading.
        peak_bytes: most resident bytes since the peak was last reset.
        peak_source: `"kernel"` where the kernel keeps a peak that can be reset,
            `"sampled"` where a thread looked every few milliseconds.
    """

    rss_bytes: int
    peak_bytes: int
    peak_source: str


@dataclass(frozen=True)
class MemoryRecord:
    """One reading of a `MemoryMonitor`.

    Args:
        epoch: index of the epoch, from 0.
        batch: index of the batch within the epoch, None for the epoch's end.
        devices: one reading per device; empty where the backend gives none.
        host: the process's own memory, None with `host=False`.
    """

    epoch: int
    batch: int | None
    devices: tuple[DeviceReading, ...]
    host: HostReading | None

    def to_json(self) -> str:
        """Return the record as one line of JSON."""
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, line: str) -> "MemoryRecord":
        """Return the record that `to_json` made `line` of."""
        fields: dict[str, Any] = json.loads(line)
        host = fields["host"]
        return cls(
            epoch=fields["epoch"],
            batch=fields["batch"],
            devices=tuple(DeviceReading(**device) for device in fields["devices"]),
            host=HostReading(**host) if host else None,
        )
