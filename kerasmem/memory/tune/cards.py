"""The cards, shared by this process and the children that measure."""

from kerasmem import backends
from kerasmem.memory.card import count_cards
from kerasmem.memory.settings import configure


def leave_room() -> None:
    """Let this process, and those it starts, take of the cards only what they need.

    Call it before the first model or tensor: later it does nothing.
    """
    settings = backends.current().settings()
    if settings.cards(count_cards()) and not settings.started():
        configure(growth=True)
