"""Devices, their memory and the GPU settings of the frameworks."""

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
    """Requested GPU settings: bytes per card, growth, card indices, allocator.

    None keeps a setting.
    """

    limit_bytes: int | None = None
    growth: bool | None = None
    devices: tuple[int, ...] | None = None
    allocator: str | None = None

    def requested(self) -> set[str]:
        """Return the names of the settings to change."""
        return {f.name for f in fields(self) if getattr(self, f.name) is not None}


class InForce(NamedTuple):
    """The settings of one card. None means no limit, or unknown."""

    limit_bytes: int | None
    growth: bool | None
    allocator: str | None


class DeviceSettings(ABC):
    """The GPU settings of a framework. Only `apply` may initialize devices."""

    fixed_by_start = frozenset({"limit_bytes", "growth", "devices", "allocator"})
    """Names of the settings that cannot change after the devices are initialized."""

    @abstractmethod
    def started(self) -> bool:
        """Return whether the framework has initialized its devices."""

    @abstractmethod
    def cards(self, shown: int) -> int:
        """Return the number of usable cards, out of `shown` CUDA cards."""

    @abstractmethod
    def visible(self, shown: int) -> tuple[int, ...]:
        """Return the CUDA indices of the cards in use."""

    @abstractmethod
    def allocator(self) -> str:
        """Return the allocator of a card, in `ALLOCATORS` or framework-specific."""

    def refusal(self, wanted: Settings) -> str | None:
        """Return the reason why settings are unsupported with a fix, or None."""
        allocator = wanted.allocator or self.allocator()
        if wanted.limit_bytes is not None and allocator == CUDA_MALLOC_ASYNC:
            return (
                "CUDA's own pool may grow past any limit and only returns the excess "
                "later. Leave out `limit`, or use allocator='bfc'."
            )
        return None

    @abstractmethod
    def apply(self, wanted: Settings, totals: Mapping[int, int]) -> None:
        """Apply settings without a `refusal`, or raise `ConfigError`.

        `totals` are the bytes of each card that the driver reports.
        """

    @abstractmethod
    def in_force(self, card: int, total_bytes: int | None) -> InForce:
        """Return the current settings of a card, as far as known."""


class StepOptions:
    """Options of a training step. The defaults work on every backend.

    `graph_passes` maps user-facing names of graph optimizer passes to framework names.
    """

    graph_passes: Mapping[str, str] = {}

    def leave_out(self, graph_pass: str) -> None:
        """Disable one of `graph_passes` in this process."""
        raise NotImplementedError(f"There is no graph optimizer: {graph_pass!r}.")

    def device_count(self, cards: int) -> int:
        """Return the number of training devices for a number of GPUs."""
        return cards or 1

    def data_parallel(self) -> AbstractContextManager[Any]:
        """Return a context for building a data-parallel model on all devices."""
        return keras.distribution.DataParallel().scope()

    def repeated(self, batch: Tensors) -> Any:
        """Return an endless data source for `fit` that repeats one batch."""
        return (batch for _ in itertools.repeat(None))


class DeviceBackend(ABC):
    """Devices, their memory, and the processes of a training."""

    pools_memory: bool = True
    """Whether the GPU allocator uses one pool, not segments of several sizes."""

    limits_itself: bool = True
    """Whether the GPU memory of a running process can be limited."""

    copies_arrays: bool = False
    """Whether `fit` copies its arrays."""

    step_options: type[StepOptions] = StepOptions
    """Options of a training step."""

    settings: type[DeviceSettings]
    """GPU settings of the framework."""

    @abstractmethod
    def device_memory(self) -> tuple[DeviceReading, ...]:
        """Return one reading per device, or an empty tuple if unsupported."""

    @abstractmethod
    def reset_device_peak(self) -> bool:
        """Reset the peak of every device. Return False if unsupported."""

    def observe_peak_resets(self, observer: Callable[[], None]) -> Callable[[], None]:
        """Call `observer()` before any peak reset, and return the undo function.

        Several users share the peak of a device, so `observer` must store the old peak.
        Resets through the adapter and the public function of the framework are
        observed.
        """
        return nothing_to_undo

    def free_caches(self) -> None:
        """Free cached programs and device memory, except TensorFlow's GPU pool."""
        return

    def release_graphs(self) -> None:
        """Release graphs together with their functions.

        Call after training a model that will be deleted.
        """
        return

    def orphaned_graphs(self, objects: Iterable[Any]) -> dict[int, int]:
        """Return the variable bytes of each graph without a function, by graph `id`."""
        del objects
        return {}

    @abstractmethod
    def why_no_device_memory(self) -> str:
        """Return the reason for missing device values, as a sentence for users."""

    def input_bytes(self) -> int | None:
        """Return the bytes of input data on the host while a GPU trains.

        None if the framework does not count them, or if only the CPU trains.
        """
        return None

    def refusals(self) -> AbstractContextManager[RefusalLog]:
        """Return a context that logs failed allocations."""
        return nullcontext(RefusalLog())

    def cpu_limit_bytes(self) -> int | None:
        """Return the limit of the CPU allocator in bytes, or None."""
        return None

    @abstractmethod
    def cuda_ordinals(self) -> dict[str, int]:
        """Return the CUDA index of the card of each device."""

    @abstractmethod
    def processes(self, model: Model) -> tuple[int, int]:
        """Return the index of this process and the number of training processes."""
