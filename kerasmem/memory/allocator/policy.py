"""How an allocator gets memory from the device."""

from dataclasses import dataclass

from kerasmem.errors import ConfigError
from kerasmem.memory.allocator.bins import ROUNDING


@dataclass(frozen=True, kw_only=True)
class PoolPolicy:
    """How the allocator gets memory from the device.

    Args:
        limit_bytes: most bytes that the pool may take, from 256.
        growth: whether the pool starts small and grows by doubling regions; False
            takes the whole limit at the first request (TensorFlow's default on GPUs).
        garbage_collection: whether regions without a chunk in use are given back when
            a request would fail otherwise (on for GPUs).
        fragmentation_fraction: share of the limit from which on a chunk that is too
            long is split; 0 for 128 MiB.
        device_bytes: bytes that the device can give at all, None for the limit: less
            where other processes use it too.

    Raises:
        ConfigError: if a figure is out of its range.
    """

    limit_bytes: int
    growth: bool = True
    garbage_collection: bool = True
    fragmentation_fraction: float = 0.0
    device_bytes: int | None = None

    def __post_init__(self) -> None:
        if not isinstance(self.limit_bytes, int) or self.limit_bytes < ROUNDING:
            raise ConfigError(
                f"A pool takes a whole number of bytes, at least {ROUNDING}. Received: "
                f"limit_bytes={self.limit_bytes!r}."
            )
        if not 0 <= self.fragmentation_fraction <= 1:
            raise ConfigError(
                "`fragmentation_fraction` is a share from 0 to 1. Received: "
                f"fragmentation_fraction={self.fragmentation_fraction}."
            )

    @property
    def most_bytes(self) -> int:
        """Most bytes that the pool can come to."""
        device = self.limit_bytes if self.device_bytes is None else self.device_bytes
        return min(self.limit_bytes, device)
