"""Settings of a device's memory: asked for, checked, made, in force."""

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
    """Return the settings that are asked for.

    Raises:
        ConfigError: if an argument is of no use, two contradict each other, or none
            is given.
    """
    limit_bytes = None if limit is None else parse_bytes(limit)
    if limit_bytes is not None and limit_bytes < MIB:
        raise invalid("configure", "limit", limit, "a size of at least 1 MiB")
    OneOf((None, True, False)).check("configure", "growth", growth)
    OneOf((None, True, False)).check("configure", "preallocate", preallocate)
    if growth is not None and growth == preallocate:
        raise ConfigError(
            "Memory that grows is not taken at the start. Expected: one of `growth` "
            "and `preallocate`, or opposite values. Received: "
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
            "There is nothing to configure. Expected: at least one setting, such as "
            "limit='8GiB'. Received: none."
        )
    return settings


def _checked_devices(devices: Any) -> tuple[int, ...]:
    is_list = isinstance(devices, (list, tuple, range)) and len(devices) > 0
    if not is_list or any(type(n) is not int or n < 0 for n in devices):
        valid = "numbers of cards from 0, at least one, such as [0, 1]"
        raise ConfigError(
            f"{invalid('configure', 'devices', devices, valid)} To use no card, set "
            "CUDA_VISIBLE_DEVICES=-1 in the environment."
        )
    return tuple(sorted(set(devices)))


def _to_text(wanted: Settings, names: Collection[str] = ()) -> str:
    return ", ".join(
        f"{name.removesuffix('_bytes')}={getattr(wanted, name)!r}"
        for name in sorted(names or wanted.requested())
    )


def status() -> DeviceStatus:
    """Read how the framework takes the GPUs, and how much of their memory is in use.

    It starts nothing: before the framework's first tensor it tells what will hold.

    Returns:
        The `DeviceStatus`: the backend, whether it has started, and of each card the
        limit and the bytes in use by this process and by others.

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
    """Return the limit of a card, and what is in use of it.

    Args:
        card: its number.
        used_bytes: bytes in use by the framework.
    """
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

    Call it at the top of the script: TensorFlow and JAX fix all of it with their first
    tensor. Without a GPU it warns and sets nothing. Settings that a framework reads
    from the environment hold for processes that this one starts, too.

    | | TensorFlow | JAX | torch |
    |---|---|---|---|
    | `limit` | yes | yes, a part of the largest card | yes, at any time |
    | `growth`, `preallocate` | yes | yes | it always grows |
    | `devices` | yes | yes | if CUDA has not fixed them yet |
    | `allocator` | both | both | by the environment only |

    Args:
        limit: most bytes to take of each card, at least 1 MiB, or a text such as
            `"8GiB"`.
        growth: True takes memory as it is needed, False all at the start.
        devices: numbers of the cards to use, from 0 among those that the environment
            variable `CUDA_VISIBLE_DEVICES` leaves.
        preallocate: the opposite word for `growth`.
        allocator: `"bfc"`, or `"cuda_malloc_async"`, which fragments less but keeps no
            limit on TensorFlow and JAX.

    Returns:
        The `DeviceStatus` after it, as `km.memory.status()` gives it.

    Raises:
        ConfigError: if the settings contradict each other, name a card that is not
            there, come too late, or are more than the framework can do.

    Example:
        >>> configure(growth=True, preallocate=True)  # doctest: +ELLIPSIS
        Traceback (most recent call last):
        ...
        kerasmem.errors.ConfigError: Memory that grows is not taken at the start. ...
    """
    request = _wanted(limit, growth, devices, preallocate, allocator)
    backend = backends.current()
    settings = backend.settings()
    late = request.requested() & settings.fixed_by_start
    if late and settings.started():
        raise ConfigError(
            f"The backend {backend.name!r} has its devices already, which fixes how it "
            f"takes them. Received: {_to_text(request, late)}. Call "
            "kerasmem.memory.configure at the top of the script, before the first "
            "model or tensor."
        )
    card_count = count_cards()
    if settings.cards(card_count):
        _apply(request, card_count)
    else:
        warnings.warn(
            "There is no GPU, so there is nothing to configure: the settings have no "
            "effect.",
            KerasMemWarning,
            stacklevel=2,
        )
    return status()


def _apply(wanted: Settings, shown: int) -> None:
    """Put settings in force.

    Args:
        wanted: the settings.
        shown: number of cards that CUDA shows.

    Raises:
        ConfigError: if a card is not there, or the framework cannot do it.
    """
    settings = backends.current().settings()
    cards = settings.cards(shown)
    if wanted.devices and wanted.devices[-1] >= cards:
        raise ConfigError(
            f"Some of the cards are not there. Expected: numbers below {cards}. "
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
                f"The limit is larger than card {card}. Expected: at most "
                f"{format_bytes(total)}. Received: limit={format_bytes(limit)}."
            )
    settings.apply(wanted, totals)
