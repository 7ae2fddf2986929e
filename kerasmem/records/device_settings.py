"""How the framework uses the cards, and what is in use on them."""

import json
from dataclasses import asdict, dataclass

from kerasmem.records.plain import read_json, record_from


@dataclass(frozen=True)
class CardStatus:
    """One card that the framework uses or will use.

    Args:
        card: CUDA's number of the card, from 0 among those that the environment
            variable `CUDA_VISIBLE_DEVICES` leaves.
        limit_bytes: most bytes that this process takes of it; None without a limit,
            or where it cannot be told.
        growth: True if memory is taken as it is needed, False if all at the start.
        allocator: who gives out the memory: `"bfc"`, `"cuda_malloc_async"`, or the
            backend's own name for another.
        used_bytes: bytes in use by this process, from the framework's own allocator,
            which may hold more; 0 before the start.
        card_used_bytes: bytes in use on the whole card; None without NVML.
        card_total_bytes: bytes of the card; None without NVML.
        others_bytes: what other processes and the driver have of `card_used_bytes`;
            None where the driver does not tell how much this process has, as in a
            container.
    """

    card: int
    limit_bytes: int | None
    growth: bool | None
    allocator: str | None
    used_bytes: int
    card_used_bytes: int | None
    card_total_bytes: int | None
    others_bytes: int | None


@dataclass(frozen=True)
class DeviceStatus:
    """What `kerasmem.memory.status` found out.

    Args:
        backend: the name of the Keras backend.
        started: True once the framework has its devices, when most of the settings
            cannot be changed any more.
        cards: the cards that the framework uses; empty on a machine without.
    """

    backend: str
    started: bool
    cards: tuple[CardStatus, ...]

    def to_json(self) -> str:
        """Return the record as JSON."""
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, text: str) -> "DeviceStatus":
        """Return the record that `to_json` made `text` of."""
        return record_from(cls, read_json(text))
