"""Devices and their memory, and how a framework takes its cards."""

import itertools
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, fields
from typing import Any, NamedTuple

import keras

from kerasmem.backends.exhaustion import RefusalLog
from kerasmem.backends.patching import nothing_to_undo
from kerasmem.records import DeviceReading
from kerasmem.types import Model, Tensors

BFC = "bfc"
CUDA_MALLOC_ASYNC = "cuda_malloc_async"
ALLOCATORS = (BFC, CUDA_MALLOC_ASYNC)


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

    def requested(self) -> set[str]:
        """Return the names of the settings that are not left as they are."""
        return {f.name for f in fields(self) if getattr(self, f.name) is not None}


class InForce(NamedTuple):
    """The settings of one card; None is no limit, or what cannot be told."""

    limit_bytes: int | None
    growth: bool | None
    allocator: str | None


class DeviceSettings(ABC):
    """The settings of a framework; nothing here but `apply` starts its devices."""

    fixed_by_start = frozenset({"limit_bytes", "growth", "devices", "allocator"})
    """Names of the settings that cannot be changed once the devices have started."""

    @abstractmethod
    def started(self) -> bool:
        """Return whether the framework has its devices already."""

    @abstractmethod
    def cards(self, shown: int) -> int:
        """Return how many cards the framework could use of the `shown` of CUDA."""

    @abstractmethod
    def visible(self, shown: int) -> tuple[int, ...]:
        """Return CUDA's numbers of the cards that it uses or will use."""

    @abstractmethod
    def allocator(self) -> str:
        """Return the allocator of a card, one of `ALLOCATORS` or a name of its own."""

    def refusal(self, wanted: Settings) -> str | None:
        """Return why the framework cannot do this and what to do, None if it can."""
        allocator = wanted.allocator or self.allocator()
        if wanted.limit_bytes is not None and allocator == CUDA_MALLOC_ASYNC:
            return (
                "CUDA's own pool may grow past any limit: it only returns the excess "
                "later. Leave out `limit`, or take allocator='bfc'."
            )
        return None

    @abstractmethod
    def apply(self, wanted: Settings, totals: Mapping[int, int]) -> None:
        """Put the settings in force.

        Args:
            wanted: what `refusal` has nothing against.
            totals: bytes of each card that the driver tells of, by its number.

        Raises:
            ConfigError: if it turns out only now that the framework cannot do it.
        """

    @abstractmethod
    def in_force(self, card: int, total_bytes: int | None) -> InForce:
        """Return what holds for a card, as far as it can be told."""


class StepOptions:
    """What can be chosen of a step, as Keras has it on every backend.

    Attributes:
        graph_passes: passes of the graph optimizer that can be left out, from what a
            user calls them to the framework's name.
    """

    graph_passes: Mapping[str, str] = {}

    def leave_out(self, graph_pass: str) -> None:
        """Leave a pass out of what this process makes of its graphs.

        Args:
            graph_pass: one of `graph_passes`.
        """
        raise NotImplementedError(f"There is no graph optimizer: {graph_pass!r}.")

    def device_count(self, cards: int) -> int:
        """Return the number of devices to train on.

        Args:
            cards: number of GPUs.
        """
        return cards or 1

    def data_parallel(self) -> AbstractContextManager[Any]:
        """Return the scope in which a model is made that trains on every device."""
        return keras.distribution.DataParallel().scope()

    def repeated(self, batch: Tensors) -> Any:
        """Return what gives `fit` the same batch again and again."""
        return (batch for _ in itertools.repeat(None))


class DeviceBackend(ABC):
    """Devices, their memory, and the processes that train together."""

    pools_memory: bool = True
    """Whether the allocator of a GPU takes one pool, not segments of several sizes."""

    limits_itself: bool = True
    """Whether a running process can be kept to a limit of a GPU's memory."""

    copies_arrays: bool = False
    """Whether `fit` copies the arrays that it is given."""

    step_options: type[StepOptions] = StepOptions
    """What can be chosen of a step."""

    settings: type[DeviceSettings]
    """What sets and tells how the framework takes its cards."""

    @abstractmethod
    def device_memory(self) -> tuple[DeviceReading, ...]:
        """Return one reading per device, empty where the framework gives none."""

    @abstractmethod
    def reset_device_peak(self) -> bool:
        """Start a new peak on every device; False where the framework cannot."""

    def observe_peak_resets(self, observer: Callable[[], None]) -> Callable[[], None]:
        """Call `observer()` before anybody starts a new peak; return the undo.

        A device has one peak for all who read it: whoever still needs that of before
        takes it over in `observer`. A reset is seen that goes through the adapter or
        through the framework's public function, looked up when it is called.
        """
        return nothing_to_undo

    def free_caches(self) -> None:
        """Give back what the framework keeps for later: programs, device memory.

        TensorFlow's pool of a card stays.
        """
        return

    def release_graphs(self) -> None:
        """Let graphs go with their functions, where the framework would keep them.

        Call it after the training of a model that will be dropped.
        """
        return

    def orphaned_graphs(self, objects: Iterable[Any]) -> dict[int, int]:
        """Return bytes of variables by identity of each graph that no function needs.

        Args:
            objects: all that the garbage collector knows.
        """
        del objects
        return {}

    @abstractmethod
    def why_no_device_memory(self) -> str:
        """Return one plain sentence for a user who gets no device figures."""

    def input_bytes(self) -> int | None:
        """Return the bytes that the host holds ready for a device that trains.

        None where the framework does not count them, or no device but the CPU trains.
        """
        return None

    def refusals(self) -> AbstractContextManager[RefusalLog]:
        """Return a scope in which what an allocator refuses is noted."""
        return nullcontext(RefusalLog())

    def cpu_limit_bytes(self) -> int | None:
        """Return the most bytes the CPU allocator hands out, None without a limit."""
        return None

    @abstractmethod
    def cuda_ordinals(self) -> dict[str, int]:
        """Return CUDA's number, from 0 among the visible, of each device's card."""

    @abstractmethod
    def processes(self, model: Model) -> tuple[int, int]:
        """Return the index of this process and the number that train together."""
