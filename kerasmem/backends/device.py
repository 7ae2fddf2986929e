"""How a framework takes its cards and their memory: what each adapter offers."""

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import NamedTuple, Protocol

BFC = "bfc"
CUDA_MALLOC_ASYNC = "cuda_malloc_async"
ALLOCATORS = (BFC, CUDA_MALLOC_ASYNC)

NO_HARD_LIMIT = (
    "CUDA's own pool may grow past any limit: it only returns the excess later. Leave "
    "out `limit`, or take allocator='bfc'."
)


@dataclass(frozen=True)
class Settings:
    """What is wanted; None leaves a setting as it is.

    Args:
        limit_bytes: most bytes to take of each card.
        growth: take memory as it is needed, instead of all at the start.
        devices: numbers of the cards to use, ascending.
        allocator: one of `ALLOCATORS`.
    """

    limit_bytes: int | None = None
    growth: bool | None = None
    devices: tuple[int, ...] | None = None
    allocator: str | None = None

    def given(self) -> set[str]:
        """Return the names of the settings that are not left as they are."""
        return {f.name for f in fields(self) if getattr(self, f.name) is not None}


class InForce(NamedTuple):
    """The settings of one card; None is no limit, or what cannot be told."""

    limit_bytes: int | None
    growth: bool | None
    allocator: str | None


class DeviceSettings(Protocol):
    """The settings of a framework; nothing here but `apply` starts its devices."""

    fixed_by_start: frozenset[str]
    """Names of the settings that cannot be changed once the devices have started."""

    def started(self) -> bool:
        """Return whether the framework has its devices already."""
        ...

    def cards(self, shown: int) -> int:
        """Return how many cards the framework could use of the `shown` of CUDA."""
        ...

    def visible(self, shown: int) -> tuple[int, ...]:
        """Return CUDA's numbers of the cards that it uses or will use."""
        ...

    def refusal(self, wanted: Settings) -> str | None:
        """Return why the framework cannot do this and what to do, None if it can."""
        ...

    def apply(self, wanted: Settings, totals: Mapping[int, int]) -> None:
        """Put the settings in force.

        Args:
            wanted: what `refusal` has nothing against.
            totals: bytes of each card that the driver tells of, by its number.

        Raises:
            ConfigError: if it turns out only now that the framework cannot do it.
        """
        ...

    def in_force(self, card: int, total_bytes: int | None) -> InForce:
        """Return what holds for a card, as far as it can be told."""
        ...
