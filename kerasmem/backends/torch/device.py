"""How torch takes its cards and their memory."""

import os
from collections.abc import Mapping

import torch

from kerasmem.backends.device import BFC, CUDA_MALLOC_ASYNC, InForce, Settings
from kerasmem.errors import ConfigError

_VISIBLE = "CUDA_VISIBLE_DEVICES"
_NAMES = {"cudaMallocAsync": CUDA_MALLOC_ASYNC}


class TorchSettings:
    """The settings of `torch.cuda`, and of the environment that CUDA reads."""

    fixed_by_start = frozenset({"devices"})

    def started(self) -> bool:
        """Return whether torch has its CUDA devices already."""
        return torch.cuda.is_initialized()

    def cards(
        self,
        shown: int,
    ) -> int:
        """Return how many CUDA devices there are."""
        return torch.cuda.device_count()

    def visible(
        self,
        shown: int,
    ) -> tuple[int, ...]:
        """Return the numbers of the CUDA devices."""
        return tuple(range(torch.cuda.device_count()))

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
        if wanted.allocator == CUDA_MALLOC_ASYNC and _allocator() != CUDA_MALLOC_ASYNC:
            return (
                "torch chose its allocator while it was imported. Set "
                "PYTORCH_CUDA_ALLOC_CONF=backend:cudaMallocAsync in the environment, "
                "before Python starts."
            )
        return None

    def apply(
        self,
        wanted: Settings,
        totals: Mapping[int, int],
    ) -> None:
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

    def in_force(
        self,
        card: int,
        total_bytes: int | None,
    ) -> InForce:
        """Return what holds for a CUDA device."""
        part = 1.0
        if self.started():  # asking would start it
            part = torch.cuda.get_per_process_memory_fraction(card)
        limit = round(part * _total(card)) if part < 1 else None
        return InForce(limit_bytes=limit, growth=True, allocator=_allocator())


def _allocator() -> str:
    name = torch.cuda.get_allocator_backend()
    return _NAMES.get(name, name)


def _total(card: int) -> int:
    return torch.cuda.get_device_properties(card).total_memory


def _show_only(devices: tuple[int, ...]) -> None:
    if len(devices) == torch.cuda.device_count():
        return
    before = os.environ.get(_VISIBLE)
    names = before.split(",") if before is not None else None
    shown = ",".join(names[n].strip() if names else str(n) for n in devices)
    os.environ[_VISIBLE] = shown
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
        f"are fixed. Received: devices={list(devices)}. Set {_VISIBLE}={shown} in the "
        "environment, before Python starts."
    )
