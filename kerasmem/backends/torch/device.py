"""Torch devices: memory and settings."""

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
    """Settings in `torch.cuda` and in the environment variables of CUDA."""

    fixed_by_start = frozenset({"devices"})

    def started(self) -> bool:
        """Return whether torch has initialized CUDA."""
        return torch.cuda.is_initialized()

    def cards(self, shown: int) -> int:
        """Return the number of CUDA devices."""
        return torch.cuda.device_count()

    def visible(self, shown: int) -> tuple[int, ...]:
        """Return the indices of the CUDA devices."""
        return tuple(range(torch.cuda.device_count()))

    def allocator(self) -> str:
        """Return the allocator of a CUDA device."""
        name = torch.cuda.get_allocator_backend()
        return _NAMES.get(name, name)

    def refusal(self, wanted: Settings) -> str | None:
        """Return the reason why settings are unsupported, or None."""
        if wanted.growth is False:
            return (
                "torch allocates memory on demand and cannot preallocate it. Leave out "
                "`growth` and `preallocate`."
            )
        if wanted.allocator == BFC:
            return (
                "torch has its own caching allocator and no BFC allocator. Leave out "
                "`allocator`."
            )
        if (
            wanted.allocator == CUDA_MALLOC_ASYNC
            and self.allocator() != CUDA_MALLOC_ASYNC
        ):
            return (
                "torch selects its allocator at import. Set "
                "PYTORCH_CUDA_ALLOC_CONF=backend:cudaMallocAsync in the environment, "
                "before Python starts."
            )
        return None

    def apply(self, wanted: Settings, totals: Mapping[int, int]) -> None:
        """Apply the settings, or raise `ConfigError` if CUDA has fixed the devices."""
        if wanted.devices is not None:
            _show_only(wanted.devices)
        if wanted.limit_bytes is not None:
            for card in range(torch.cuda.device_count()):
                part = min(wanted.limit_bytes / _total(card), 1.0)
                torch.cuda.set_per_process_memory_fraction(part, card)

    def in_force(self, card: int, total_bytes: int | None) -> InForce:
        """Return the current settings of a CUDA device."""
        part = 1.0
        if self.started():  # the query would initialize CUDA
            part = torch.cuda.get_per_process_memory_fraction(card)
        limit = round(part * _total(card)) if part < 1 else None
        return InForce(limit_bytes=limit, growth=True, allocator=self.allocator())


class TorchDevice(DeviceBackend):
    """Torch devices."""

    pools_memory = False
    settings = TorchSettings

    def device_memory(self) -> tuple[DeviceReading, ...]:
        """Return a reading per CUDA device."""
        return tuple(_reading(index) for index in range(torch.cuda.device_count()))

    def free_caches(self) -> None:
        """Return unused segments to the card."""
        torch.cuda.empty_cache()

    def reset_device_peak(self) -> bool:
        """Reset all peaks to the current use. Return False if no device is counted."""
        if not torch.cuda.is_initialized():
            return False
        for index in range(torch.cuda.device_count()):
            torch.cuda.reset_peak_memory_stats(index)
        return True

    def observe_peak_resets(self, observer: Callable[[], None]) -> Callable[[], None]:
        """Call `observer()` before any peak reset, and return the undo function."""
        undo = ExitStack()
        # torch.cuda and torch.cuda.memory export one function, and torch itself uses
        # the second name. torch.accelerator has another function for all devices.
        for module in (torch.cuda, torch.cuda.memory, torch.accelerator):
            undo.callback(call_before(module, "reset_peak_memory_stats", observer))
        return undo.close

    def why_no_device_memory(self) -> str:
        """Return the reason for missing device values."""
        return "torch does not count memory on a CPU, so device values are missing."

    def input_bytes(self) -> int | None:
        """Return the pinned bytes in use for copies to a CUDA device."""
        if not torch.cuda.is_initialized():
            return None
        return torch.cuda.host_memory_stats().get("active_bytes.current")

    def cuda_ordinals(self) -> dict[str, int]:
        """Return the CUDA index of the card of each device."""
        return {_name(index): index for index in range(torch.cuda.device_count())}

    def processes(self, model: Model) -> tuple[int, int]:
        """Return the index of this process and the number of training processes."""
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
        # Without the largest free block, because the search in the whole pool is slow.
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
    # CUDA reads the variable once. Whether Keras has already initialized the devices is
    # only visible in the resulting number.
    torch.cuda.init()
    if torch.cuda.device_count() == len(devices):
        return
    if before is None:
        del os.environ[_VISIBLE]
    else:
        os.environ[_VISIBLE] = before
    raise ConfigError(
        "CUDA devices are fixed, because Keras initialized them at import. "
        f"Received: devices={list(devices)}. Set {_VISIBLE}={setting} in the "
        "environment, before Python starts."
    )
