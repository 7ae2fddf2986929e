"""The figures of the device that ran out."""

from dataclasses import dataclass

from kerasmem import backends
from kerasmem.memory.card import own_bytes, read_card


@dataclass(frozen=True)
class DeviceFigures:
    """What is known of a device; None where nobody tells.

    Args:
        name: the framework's name of it.
        limit_bytes: most bytes that this process can have of it.
        limit_is_exact: False if nobody has set a limit: then it is what other processes
            leave of the card.
        current_bytes: bytes in use now.
        peak_bytes: most bytes in use since the peak was last reset.
    """

    name: str | None = None
    limit_bytes: int | None = None
    limit_is_exact: bool = False
    current_bytes: int | None = None
    peak_bytes: int | None = None


def figures_of(name: str | None = None) -> DeviceFigures:
    """Return the figures of the device `name`, or of the fullest one for None."""
    readings = backends.current().device_memory()
    if name is not None:
        readings = tuple(one for one in readings if one.name == name)
    if not readings:
        return DeviceFigures(name, *_limit(name))
    fullest = max(readings, key=lambda reading: reading.peak_bytes)
    return DeviceFigures(
        fullest.name,
        *_limit(fullest.name),
        current_bytes=fullest.current_bytes,
        # One that leaves small requests out is no peak to reckon with.
        peak_bytes=fullest.peak_bytes if fullest.complete else None,
    )


def _limit(name: str | None) -> tuple[int | None, bool]:
    """Return the limit, and whether it is exact."""
    backend = backends.current()
    ordinals = backend.cuda_ordinals()
    if name not in ordinals:
        is_cpu = name is None or name.lower().startswith("cpu")
        return (backend.cpu_limit_bytes() if is_cpu else None), True
    ordinal = ordinals[name]
    card = read_card(ordinal)
    total = card.total_bytes if card else None
    limit = backend.settings().in_force(ordinal, total).limit_bytes
    if limit is not None or card is None:
        return limit, True
    own = own_bytes(ordinal)
    others = 0 if own is None else max(card.used_bytes - own, 0)
    return card.total_bytes - others, False
