"""Torch's devices: their memory, and how it takes them."""

import os
from collections.abc import Callable, Mapping
from contextlib import ExitStack

import torch

from kerasmem.backends.device import (
    BFC,
    CUDA_MALLOC_ASYNC,
    DeviceBackend,
    DeviceSettings,
    InForce,
    Settings,
)
from kerasmem.backends.patching import call_before
from kerasmem.errors import ConfigError
from kerasmem.records import DeviceReading
from kerasmem.types import Model

_VISIBLE = "CUDA_VISIBLE_DEVICES"
_NAMES = {"cudaMallocAsync": CUDA_MALLOC_ASYNC}


class TorchSettings(DeviceSettings):
    """The settings of `torch.cuda`, and of the environment that CUDA reads."""

    fixed_by_start = frozenset({"devices"})

    def started(self) -> bool:
        """Return whether torch has its CUDA devices already."""
        return torch.cuda.is_initialized()

    def cards(self, shown: int) -> int:
        """Return how many CUDA devices there are."""
        return torch.cuda.device_count()

    def visible(self, shown: int) -> tuple[int, ...]:
        """Return the numbers of the CUDA devices."""
        return tuple(range(torch.cuda.device_count()))

    def allocator(self) -> str:
        """Return the allocator of a CUDA device."""
        name = torch.cuda.get_allocator_backend()
        return _NAMES.get(name, name)

    def refusal(self, wanted: Settings) -> str | None:
        """Return why torch cannot do this, None if it can."""
        if wanted.growth is False:
            return (
                "torch takes memory as it needs it and has no way to take all at the "
                "start. Leave out `growth` and `preallocate`."
            )
        if wanted.allocator == BFC:
            return (
                "torch has a caching allocator of its own and no BFC. Leave out "
                "`allocator`."
            )
        if (
            wanted.allocator == CUDA_MALLOC_ASYNC
            and self.allocator() != CUDA_MALLOC_ASYNC
        ):
            return (
                "torch chose its allocator while it was imported. Set "
                "PYTORCH_CUDA_ALLOC_CONF=backend:cudaMallocAsync in the environment, "
                "before Python starts."
            )
        return None

    def apply(self, wanted: Settings, totals: Mapping[int, int]) -> None:
        """Put the settings in force.

        Raises:
            ConfigError: if CUDA has fixed the devices before.
        """
        if wanted.devices is not None:
            _show_only(wanted.devices)
        if wanted.limit_bytes is not None:
            for card in range(torch.cuda.device_count()):
                part = min(wanted.limit_bytes / _total(card), 1.0)
                torch.cuda.set_per_process_memory_fraction(part, card)

    def in_force(self, card: int, total_bytes: int | None) -> InForce:
        """Return what holds for a CUDA device."""
        part = 1.0
        if self.started():  # asking would start it
            part = torch.cuda.get_per_process_memory_fraction(card)
        limit = round(part * _total(card)) if part < 1 else None
        return InForce(limit_bytes=limit, growth=True, allocator=self.allocator())


class TorchDevice(DeviceBackend):
    """The devices of torch."""

    pools_memory = False
    settings = TorchSettings

    def device_memory(self) -> tuple[DeviceReading, ...]:
        """Return a reading per CUDA device; other devices give none."""
        return tuple(_reading(index) for index in range(torch.cuda.device_count()))

    def free_caches(self) -> None:
        """Give segments without a tensor in them back to the card."""
        torch.cuda.empty_cache()

    def reset_device_peak(self) -> bool:
        """Set every peak to what is in use now; False if no device is counted."""
        if not torch.cuda.is_initialized():
            return False
        for index in range(torch.cuda.device_count()):
            torch.cuda.reset_peak_memory_stats(index)
        return True

    def observe_peak_resets(self, observer: Callable[[], None]) -> Callable[[], None]:
        """Call `observer()` before anybody starts a new peak; return the undo."""
        undo = ExitStack()
        # One function by two names, of which torch's own callers look up the second,
        # and the one for devices of any kind.
        for module in (torch.cuda, torch.cuda.memory, torch.accelerator):
            undo.callback(call_before(module, "reset_peak_memory_stats", observer))
        return undo.close

    def why_no_device_memory(self) -> str:
        """Return one plain sentence for a user who gets no device figures."""
        return "torch counts no memory on a CPU device, so there is no device series."

    def input_bytes(self) -> int | None:
        """Return the pinned bytes in use, from which batches go to a CUDA device."""
        if not torch.cuda.is_initialized():
            return None
        return torch.cuda.host_memory_stats().get("active_bytes.current")

    def cuda_ordinals(self) -> dict[str, int]:
        """Return CUDA's number of the card below each device."""
        return {_name(index): index for index in range(torch.cuda.device_count())}

    def processes(self, model: Model) -> tuple[int, int]:
        """Return the index of this process and the number that train together."""
        if torch.distributed.is_available() and torch.distributed.is_initialized():
            return torch.distributed.get_rank(), torch.distributed.get_world_size()
        return (
            int(os.environ.get("RANK", "0")),
            int(os.environ.get("WORLD_SIZE", "1")),
        )


def _name(index: int) -> str:
    return f"cuda:{index}"


def _reading(index: int) -> DeviceReading:
    stats = torch.cuda.memory_stats(index)
    return DeviceReading(
        name=_name(index),
        current_bytes=stats.get("allocated_bytes.all.current", 0),
        peak_bytes=stats.get("allocated_bytes.all.peak", 0),
        peak_was_reset=True,
        # The largest free block takes a walk over the whole pool: too dear a reading.
        reserved_bytes=stats.get("reserved_bytes.all.current"),
    )


def _total(card: int) -> int:
    return torch.cuda.get_device_properties(card).total_memory


def _show_only(devices: tuple[int, ...]) -> None:
    if len(devices) == torch.cuda.device_count():
        return
    before = os.environ.get(_VISIBLE)
    names = before.split(",") if before is not None else None
    setting = ",".join(names[n].strip() if names else str(n) for n in devices)
    os.environ[_VISIBLE] = setting
    # CUDA reads it once. Keras may have asked for the devices while it was imported,
    # and whether it has is seen only from what comes of it.
    torch.cuda.init()
    if torch.cuda.device_count() == len(devices):
        return
    if before is None:
        del os.environ[_VISIBLE]
    else:
        os.environ[_VISIBLE] = before
    raise ConfigError(
        "Keras asked CUDA for its devices while it was imported, and since then they "
        f"are fixed. Received: devices={list(devices)}. Set {_VISIBLE}={setting} in "
        "the environment, before Python starts."
    )
