"""Checks, applies and reads the memory settings of devices."""

import warnings
from collections.abc import Collection, Sequence
from typing import Any

from kerasmem import backends
from kerasmem.backends.device import ALLOCATORS, Settings
from kerasmem.checks import OneOf, invalid
from kerasmem.errors import ConfigError, KerasMemWarning
from kerasmem.memory.nvidia import count_cards, own_bytes, read_card
from kerasmem.records import CardStatus, DeviceStatus
from kerasmem.units import MIB, format_bytes, parse_bytes


def _wanted(
    limit: Any, growth: Any, devices: Any, preallocate: Any, allocator: Any
) -> Settings:
    limit_bytes = None if limit is None else parse_bytes(limit, "configure", "limit")
    if limit_bytes is not None and limit_bytes < MIB:
        raise invalid("configure", "limit", limit, "a size of at least 1 MiB")
    OneOf((None, True, False)).check("configure", "growth", growth)
    OneOf((None, True, False)).check("configure", "preallocate", preallocate)
    if growth is not None and growth == preallocate:
        raise ConfigError(
            "Memory growth and preallocation exclude each other. Expected: one of "
            "`growth` and `preallocate`, or opposite values. Received: "
            f"{growth=}, {preallocate=}."
        )
    OneOf((None, *ALLOCATORS)).check("configure", "allocator", allocator)
    settings = Settings(
        limit_bytes=limit_bytes,
        growth=growth if preallocate is None else not preallocate,
        devices=None if devices is None else _checked_devices(devices),
        allocator=allocator,
    )
    if not settings.requested():
        raise ConfigError(
            "Expected: at least one setting, such as limit='8GiB'. Received: no "
            "settings."
        )
    return settings


def _checked_devices(devices: Any) -> tuple[int, ...]:
    is_list = isinstance(devices, (list, tuple, range)) and len(devices) > 0
    if not is_list or any(type(n) is not int or n < 0 for n in devices):
        valid = "a list of at least one GPU index from 0, such as [0, 1]"
        raise ConfigError(
            f"{invalid('configure', 'devices', devices, valid)} To use no GPU, set "
            "CUDA_VISIBLE_DEVICES=-1 in the environment."
        )
    return tuple(sorted(set(devices)))


def _to_text(wanted: Settings, names: Collection[str] = ()) -> str:
    return ", ".join(
        f"{name.removesuffix('_bytes')}={getattr(wanted, name)!r}"
        for name in sorted(names or wanted.requested())
    )


def status() -> DeviceStatus:
    """Return the GPU memory settings of the framework and the memory in use.

    The call does not initialize any device. Before the first tensor, the settings that
    will apply are returned.

    Returns:
        A `DeviceStatus` with the backend and whether its devices are initialized. For
        each GPU, the status contains the limit and the bytes in use by this and other
        processes.

    Example:
        >>> import keras
        >>> status().backend == keras.backend.backend()
        True
    """
    backend = backends.current()
    settings = backend.settings()
    used_bytes = _used_bytes() if settings.started() else {}
    return DeviceStatus(
        backend=backend.name,
        started=settings.started(),
        cards=tuple(
            card_status(card, used_bytes.get(card, 0))
            for card in settings.visible(count_cards())
        ),
    )


def _used_bytes() -> dict[int, int]:
    backend = backends.current()
    ordinals = backend.cuda_ordinals()
    by_card = dict.fromkeys(ordinals.values(), 0)
    for reading in backend.device_memory():
        if reading.name in ordinals:
            by_card[ordinals[reading.name]] += reading.current_bytes
    return by_card


def card_status(card: int, used_bytes: int) -> CardStatus:
    """Return the limit of a GPU and its memory in use."""
    settings = backends.current().settings()
    reading = read_card(card)
    own = own_bytes(card) if settings.started() else 0
    others = None
    if reading is not None and own is not None:
        others = max(reading.used_bytes - own, 0)
    total = reading.total_bytes if reading else None
    return CardStatus(
        card=card,
        **settings.in_force(card, total)._asdict(),
        used_bytes=used_bytes,
        card_used_bytes=reading.used_bytes if reading else None,
        card_total_bytes=total,
        others_bytes=others,
    )


def configure(
    *,
    limit: int | str | None = None,
    growth: bool | None = None,
    devices: Sequence[int] | None = None,
    preallocate: bool | None = None,
    allocator: str | None = None,
) -> DeviceStatus:
    """Configure the memory of the GPUs: limit, growth, devices and allocator.

    Call this function at the top of the script. TensorFlow and JAX fix these settings
    when they create the first tensor. Without a GPU, a warning is issued and nothing is
    set. Settings that a framework reads from the environment also apply to child
    processes.

    | | TensorFlow | JAX | torch |
    |---|---|---|---|
    | `limit` | yes | yes, as a fraction of the largest GPU | yes, at any time |
    | `growth`, `preallocate` | yes | yes | only growth |
    | `devices` | yes | yes | before CUDA is initialized |
    | `allocator` | both | both | only in the environment |

    Args:
        limit: Maximum memory per GPU: an integer of bytes or a text such as `"8GiB"`.
            At least 1 MiB. Defaults to `None` (no limit).
        growth: Boolean. If `True`, memory is allocated on demand. If `False`, all
            memory is allocated at the start.
        devices: Indices of the GPUs to use, from 0, among those in the environment
            variable `CUDA_VISIBLE_DEVICES`.
        preallocate: Boolean. The opposite of `growth`.
        allocator: `"bfc"` or `"cuda_malloc_async"`. The second fragments less, but
            ignores the limit on TensorFlow and JAX.

    Returns:
        The new `DeviceStatus`, as returned by `km.memory.status()`.

    Raises:
        ConfigError: If settings contradict each other, name a missing GPU, follow
            device initialization, or are not supported by the framework.

    Example:
        >>> configure(growth=True, preallocate=True)  # doctest: +ELLIPSIS
        Traceback (most recent call last):
        ...
        kerasmem.errors.ConfigError: Memory growth and preallocation exclude each ...
    """
    request = _wanted(limit, growth, devices, preallocate, allocator)
    backend = backends.current()
    settings = backend.settings()
    late = request.requested() & settings.fixed_by_start
    if late and settings.started():
        raise ConfigError(
            f"The backend {backend.name!r} has already initialized its devices. "
            f"Received: {_to_text(request, late)}. Next: call "
            "kerasmem.memory.configure at the top of the script, before the first "
            "model or tensor."
        )
    card_count = count_cards()
    if settings.cards(card_count):
        _apply(request, card_count)
    else:
        warnings.warn(
            "No GPU was found, so the settings have no effect.",
            KerasMemWarning,
            stacklevel=2,
        )
    return status()


def _apply(wanted: Settings, shown: int) -> None:
    settings = backends.current().settings()
    cards = settings.cards(shown)
    if wanted.devices and wanted.devices[-1] >= cards:
        raise ConfigError(
            f"Some GPUs do not exist. Expected: indices below {cards}. "
            f"Received: {_to_text(wanted, {'devices'})}."
        )
    refusal = settings.refusal(wanted)
    if refusal is not None:
        raise ConfigError(f"{refusal} Received: {_to_text(wanted)}.")
    card_numbers = wanted.devices or settings.visible(shown)
    totals = {
        n: card.total_bytes for n in card_numbers if (card := read_card(n)) is not None
    }
    limit = wanted.limit_bytes
    for card, total in totals.items():
        if limit is not None and limit > total:
            raise ConfigError(
                f"The limit exceeds the memory of GPU {card}. Expected: at most "
                f"{format_bytes(total)}. Received: limit={format_bytes(limit)}."
            )
    settings.apply(wanted, totals)
