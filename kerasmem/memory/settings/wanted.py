"""The arguments of `configure`, checked."""

from collections.abc import Collection
from typing import Any

from kerasmem.backends.settings import ALLOCATORS, Settings
from kerasmem.errors import ConfigError
from kerasmem.units import MIB, parse_bytes


def read_settings(
    limit: Any, growth: Any, devices: Any, preallocate: Any, allocator: Any
) -> Settings:
    """Return what is wanted.

    Raises:
        ConfigError: if an argument is of no use, two contradict each other, or none
            is given.
    """
    wanted = Settings(
        limit_bytes=_limit(limit),
        growth=_growth(growth, preallocate),
        devices=_devices(devices),
        allocator=_allocator(allocator),
    )
    if not wanted.given():
        raise ConfigError(
            "There is nothing to configure. Expected: at least one setting, such as "
            "limit='8GiB'. Received: none."
        )
    return wanted


def told(wanted: Settings, names: Collection[str] = ()) -> str:
    """Return the settings of these names, or all given ones, as `name=value`."""
    return ", ".join(
        f"{name.removesuffix('_bytes')}={getattr(wanted, name)!r}"
        for name in sorted(names or wanted.given())
    )


def _limit(limit: Any) -> int | None:
    if limit is None:
        return None
    size = parse_bytes(limit)
    if size < MIB:
        raise ConfigError(
            f"A card cannot be used with so little. Expected: a limit of at least 1 "
            f"MiB. Received: limit={limit!r}."
        )
    return size


def _growth(growth: Any, preallocate: Any) -> bool | None:
    for name, value in (("growth", growth), ("preallocate", preallocate)):
        if value is not None and not isinstance(value, bool):
            raise ConfigError(
                f"`{name}` is True, False or None. Received: {name}={value!r}."
            )
    if growth is not None and growth == preallocate:
        raise ConfigError(
            "Memory that grows is not taken at the start. Expected: one of `growth` "
            "and `preallocate`, or opposite values. Received: "
            f"{growth=}, {preallocate=}."
        )
    return growth if preallocate is None else not preallocate


def _devices(devices: Any) -> tuple[int, ...] | None:
    if devices is None:
        return None
    is_list = isinstance(devices, (list, tuple, range)) and len(devices) > 0
    if not is_list or any(type(n) is not int or n < 0 for n in devices):
        raise ConfigError(
            "`devices` are numbers of cards from 0, at least one, such as [0, 1]. "
            f"Received: {devices=}. To use no card, set CUDA_VISIBLE_DEVICES=-1 in the "
            "environment."
        )
    return tuple(sorted(set(devices)))


def _allocator(allocator: Any) -> str | None:
    if allocator is not None and allocator not in ALLOCATORS:
        raise ConfigError(
            f"`allocator` is one of {list(ALLOCATORS)}. Received: {allocator=}."
        )
    return allocator
