"""JAX devices: memory and settings."""

import os
from collections.abc import Mapping
from importlib.metadata import entry_points
from typing import Any

import jax
import keras
from jax._src import xla_bridge

from kerasmem.backends.device import (
    BFC,
    CUDA_MALLOC_ASYNC,
    DeviceBackend,
    DeviceSettings,
    InForce,
    Settings,
    StepOptions,
)
from kerasmem.errors import ConfigError
from kerasmem.records import DeviceReading
from kerasmem.types import Model

_ALLOCATOR = "XLA_PYTHON_CLIENT_ALLOCATOR"
_PREALLOCATE = "XLA_PYTHON_CLIENT_PREALLOCATE"
_FRACTION = "XLA_CLIENT_MEM_FRACTION"
_OLD_FRACTION = "XLA_PYTHON_CLIENT_MEM_FRACTION"
_USUAL_FRACTION = 0.75
_DEVICES = "jax_cuda_visible_devices"

_NAMES = {"default": BFC, "cuda_async": CUDA_MALLOC_ASYNC}


class JaxSettings(DeviceSettings):
    """Settings in `jax.config` and in the environment variables of XLA."""

    def started(self) -> bool:
        """Return whether JAX has initialized its devices."""
        # Private: every public query of the devices initializes them.
        return xla_bridge.backends_are_initialized()

    def cards(self, shown: int) -> int:
        """Return `shown` if JAX supports CUDA, else 0."""
        return shown if _uses_cuda() else 0

    def visible(self, shown: int) -> tuple[int, ...]:
        """Return the indices of the cards in use."""
        if self.started():
            devices = (d for d in jax.local_devices() if d.platform == "gpu")
            return tuple(sorted(device.local_hardware_id for device in devices))
        setting = _visible_devices()
        every = range(self.cards(shown))
        if setting == "all":
            return tuple(every)
        return tuple(n for n in every if str(n) in setting.split(","))

    def allocator(self) -> str:
        """Return the allocator of a card."""
        name = (os.environ.get(_ALLOCATOR) or "default").lower()
        return _NAMES.get(name, name)

    def apply(self, wanted: Settings, totals: Mapping[int, int]) -> None:
        """Apply the settings. A limit needs cards of known size."""
        if wanted.limit_bytes is not None:
            _set_limit(wanted.limit_bytes, totals)
        if wanted.allocator is not None:
            is_async = wanted.allocator == CUDA_MALLOC_ASYNC
            os.environ[_ALLOCATOR] = "cuda_async" if is_async else BFC
        if wanted.growth is not None:
            os.environ[_PREALLOCATE] = "false" if wanted.growth else "true"
        if wanted.devices is not None:
            jax.config.update(_DEVICES, ",".join(map(str, wanted.devices)))

    def in_force(self, card: int, total_bytes: int | None) -> InForce:
        """Return the current settings of a card."""
        allocator = self.allocator()
        limit = _limit(card, total_bytes, is_started=self.started())
        return InForce(
            limit_bytes=limit if allocator == BFC else None,
            growth=os.environ.get(_PREALLOCATE) in {"false", "False", "0"},
            allocator=allocator,
        )


class JaxOptions(StepOptions):
    """Options of a JAX training step."""

    def device_count(self, cards: int) -> int:
        """Return the number of training devices. A CPU can have several."""
        return cards or len(keras.distribution.list_devices())


class JaxDevice(DeviceBackend):
    """JAX devices."""

    limits_itself = False
    step_options = JaxOptions
    settings = JaxSettings

    def device_memory(self) -> tuple[DeviceReading, ...]:
        """Return a reading per local device, except CPUs."""
        figures = [(d, d.memory_stats()) for d in jax.local_devices()]
        return tuple(_reading(device, stats) for device, stats in figures if stats)

    def free_caches(self) -> None:
        """Delete compiled programs, which are compiled again on demand."""
        jax.clear_caches()

    def reset_device_peak(self) -> bool:
        """Return False, because JAX has one peak per process."""
        return False

    def why_no_device_memory(self) -> str:
        """Return the reason for missing device values."""
        return "JAX does not count memory on a CPU, so device values are missing."

    def cuda_ordinals(self) -> dict[str, int]:
        """Return the CUDA index of the card of each local device."""
        return {
            _name(device): device.local_hardware_id
            for device in jax.local_devices()
            if device.platform == "gpu"
        }

    def processes(self, model: Model) -> tuple[int, int]:
        """Return the index of this process and the number of training processes."""
        return jax.process_index(), jax.process_count()


def _name(device: Any) -> str:
    return f"{device.platform}:{device.id}"


def _reading(device: Any, stats: dict[str, int]) -> DeviceReading:
    return DeviceReading(
        name=_name(device),
        current_bytes=stats["bytes_in_use"],
        peak_bytes=stats["peak_bytes_in_use"],
        peak_was_reset=False,
        # Some allocators have the entry but leave it zero.
        reserved_bytes=stats.get("pool_bytes") or None,
        largest_free_bytes=stats.get("largest_free_block_bytes") or None,
    )


def _limit(card: int, total_bytes: int | None, *, is_started: bool) -> int | None:
    if is_started:
        stats = (
            device.memory_stats()
            for device in jax.local_devices()
            if device.platform == "gpu" and device.local_hardware_id == card
        )
        return (next(stats, None) or {}).get("bytes_limit")
    fraction = os.environ.get(_FRACTION) or os.environ.get(_OLD_FRACTION)
    part = float(fraction or _USUAL_FRACTION)
    return None if total_bytes is None else round(part * total_bytes)


def _uses_cuda() -> bool:
    config: Any = jax.config  # its attributes are created at import
    platforms = config.jax_platforms or "cuda"
    own_platforms = {"cuda", "gpu"} & set(platforms.split(","))
    plugins = entry_points(group="jax_plugins")
    return bool(own_platforms) and any("cuda" in plugin.name for plugin in plugins)


def _visible_devices() -> str:
    # Private: the flag has a public setter but no public getter.
    return xla_bridge.CUDA_VISIBLE_DEVICES.value


def _set_limit(limit_bytes: int, totals: Mapping[int, int]) -> None:
    if not totals:
        raise ConfigError(
            "JAX needs the limit as a fraction, but the driver does not report the "
            f"card sizes. Received: limit={limit_bytes}. Set {_FRACTION} in the "
            "environment instead, a number from 0 to 1."
        )
    # One fraction applies to all cards, so smaller cards get a lower limit.
    os.environ[_FRACTION] = repr(limit_bytes / max(totals.values()))
    os.environ.pop(_OLD_FRACTION, None)  # XLA rejects both at once
