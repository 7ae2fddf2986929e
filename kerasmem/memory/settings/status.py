"""How the framework takes the cards, and what is in use on them."""

from kerasmem import backends
from kerasmem.memory.card import count_cards, own_bytes, read_card
from kerasmem.records import CardStatus, DeviceStatus


def status() -> DeviceStatus:
    """Return how the framework takes the cards, and what is in use on them.

    It starts nothing: before the framework's first tensor it tells what will hold.

    Example:
        >>> import keras
        >>> status().backend == keras.backend.backend()
        True
    """
    backend = backends.current()
    settings = backend.settings()
    used = _used_bytes() if settings.started() else {}
    return DeviceStatus(
        backend=backend.name,
        started=settings.started(),
        cards=tuple(
            _card_status(card, used.get(card, 0))
            for card in settings.visible(count_cards())
        ),
    )


def _used_bytes() -> dict[int, int]:
    backend = backends.current()
    ordinals = backend.cuda_ordinals()
    used = dict.fromkeys(ordinals.values(), 0)
    for reading in backend.device_memory():
        if reading.name in ordinals:
            used[ordinals[reading.name]] += reading.current_bytes
    return used


def _card_status(card: int, used_bytes: int) -> CardStatus:
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
