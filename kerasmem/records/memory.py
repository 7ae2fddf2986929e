"""What was in use, on the devices and on the host, at one moment of a run."""

from dataclasses import dataclass

from kerasmem.records.plain import JsonRecord


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

    @property
    def counted(self) -> tuple[DeviceReading, ...]:
        """The devices whose figures are a measurement."""
        return tuple(device for device in self.devices if device.counts)
