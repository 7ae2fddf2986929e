"""How the framework shall take the cards and their memory."""

import warnings
from collections.abc import Sequence

from kerasmem import backends
from kerasmem.backends.settings import Settings
from kerasmem.errors import ConfigError, KerasMemWarning
from kerasmem.memory.card import count_cards, read_card
from kerasmem.memory.settings.status import status
from kerasmem.memory.settings.wanted import read_settings, told
from kerasmem.records import DeviceStatus
from kerasmem.units import format_bytes


def configure(
    *,
    limit: int | str | None = None,
    growth: bool | None = None,
    devices: Sequence[int] | None = None,
    preallocate: bool | None = None,
    allocator: str | None = None,
) -> DeviceStatus:
    """Set how the framework takes the cards and their memory; return the status.

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

    Raises:
        ConfigError: if the settings contradict each other, name a card that is not
            there, come too late, or are more than the framework can do.

    Example:
        >>> configure(growth=True, preallocate=True)  # doctest: +ELLIPSIS
        Traceback (most recent call last):
        ...
        kerasmem.errors.ConfigError: Memory that grows is not taken at the start. ...
    """
    wanted = read_settings(limit, growth, devices, preallocate, allocator)
    _check_in_time(wanted)
    if backends.current().settings().cards(count_cards()):
        _apply(wanted)
    else:
        warnings.warn(
            "There is no GPU, so there is nothing to configure: the settings have no "
            "effect.",
            KerasMemWarning,
            stacklevel=2,
        )
    return status()


def _check_in_time(wanted: Settings) -> None:
    backend = backends.current()
    settings = backend.settings()
    late = wanted.given() & settings.fixed_by_start
    if late and settings.started():
        raise ConfigError(
            f"The backend {backend.name!r} has its devices already, which fixes how it "
            f"takes them. Received: {told(wanted, late)}. Call "
            "kerasmem.memory.configure at the top of the script, before the first "
            "model or tensor."
        )


def _apply(wanted: Settings) -> None:
    settings = backends.current().settings()
    shown = count_cards()
    _check_devices(wanted, settings.cards(shown))
    refusal = settings.refusal(wanted)
    if refusal is not None:
        raise ConfigError(f"{refusal} Received: {told(wanted)}.")
    used = wanted.devices or settings.visible(shown)
    totals = {n: card.total_bytes for n in used if (card := read_card(n)) is not None}
    _check_limit(wanted.limit_bytes, totals)
    settings.apply(wanted, totals)


def _check_devices(wanted: Settings, cards: int) -> None:
    if wanted.devices and wanted.devices[-1] >= cards:
        raise ConfigError(
            f"Some of the cards are not there. Expected: numbers below {cards}. "
            f"Received: {told(wanted, {'devices'})}."
        )


def _check_limit(limit_bytes: int | None, totals: dict[int, int]) -> None:
    for card, total in totals.items():
        if limit_bytes is not None and limit_bytes > total:
            raise ConfigError(
                f"The limit is larger than card {card}. Expected: at most "
                f"{format_bytes(total)}. Received: limit={format_bytes(limit_bytes)}."
            )
