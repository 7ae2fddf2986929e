"""How an allocator gets memory from the device, and its free chunks by size."""

from bisect import bisect_left, insort
from dataclasses import dataclass

from kerasmem.errors import ConfigError
from kerasmem.units import MIB

ROUNDING = 256
"""Every chunk is a multiple of so many bytes long."""

BINS = 21


@dataclass(slots=True, eq=False)
class Chunk:
    """A piece of a region, in use or free.

    Args:
        address: where it begins.
        size: its length in bytes.
        requested: what was asked for, 0 while it is free.
        previous: the chunk before it in the region, None for the first.
        next: the chunk behind it in the region, None for the last.
    """

    address: int
    size: int
    requested: int = 0
    previous: "Chunk | None" = None
    next: "Chunk | None" = None

    @property
    def is_free(self) -> bool:
        """Whether nobody holds the chunk."""
        return self.requested == 0


class FreeChunks:
    """Free chunks in 21 bins; bin `n` holds those of at least `256 << n` bytes."""

    def __init__(self) -> None:
        self._bins: list[list[tuple[int, int]]] = [[] for _ in range(BINS)]
        self._chunks: dict[int, Chunk] = {}

    def add(self, chunk: Chunk) -> None:
        """Add a free chunk."""
        insort(self._bins[bin_of(chunk.size)], (chunk.size, chunk.address))
        self._chunks[chunk.address] = chunk

    def remove(self, chunk: Chunk) -> None:
        """Take a chunk out."""
        ordered = self._bins[bin_of(chunk.size)]
        del ordered[bisect_left(ordered, (chunk.size, chunk.address))]
        del self._chunks[chunk.address]

    def smallest(self, size: int) -> Chunk | None:
        """Return the smallest chunk of at least `size` bytes, of these the lowest."""
        for ordered in self._bins[bin_of(size) :]:
            place = bisect_left(ordered, (size, 0))
            if place < len(ordered):
                return self._chunks[ordered[place][1]]
        return None

    @property
    def largest_bytes(self) -> int:
        """Size of the largest chunk, 0 if there is none."""
        return next((b[-1][0] for b in reversed(self._bins) if b), 0)


def bin_of(size: int) -> int:
    """Return the number of the bin for chunks of `size` bytes.

    Example:
        >>> bin_of(256), bin_of(511), bin_of(512), bin_of(1 << 40)
        (0, 0, 1, 20)
    """
    return min(BINS - 1, (max(size, ROUNDING) // ROUNDING).bit_length() - 1)


def rounded(size: int) -> int:
    """Return `size` rounded up to a whole number of 256 bytes.

    Example:
        >>> rounded(1), rounded(256), rounded(257)
        (256, 256, 512)
    """
    return -(-size // ROUNDING) * ROUNDING


WHOLE_CHUNK_WASTE = 128 * MIB
"""A chunk this much longer than asked for is always split."""


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
