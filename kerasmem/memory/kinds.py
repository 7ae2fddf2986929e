"""What is known of an object by its type alone, asked once a type."""

from collections.abc import Callable
from typing import Any


class KindTable(dict[type, bool]):
    """Whether something is so, by type; each type is asked for once.

    Args:
        asked: returns it for a type.
    """

    def __init__(self, asked: Callable[[type], bool]) -> None:
        super().__init__()
        self._asked = asked

    def __missing__(self, kind: type) -> bool:
        """Return what a type that is new gives, and note it."""
        self[kind] = is_so = self._asked(kind)
        return is_so


def is_own(kind: type) -> bool:
    """Return True for what kerasmem itself keeps."""
    return module_of(kind).startswith("kerasmem.")


def module_of(kind: type) -> str:
    """Return the module of a type, empty where that is no text."""
    module = attribute(kind, "__module__")
    return module if isinstance(module, str) else ""  # some classes give it a property


def attribute(kind: type, name: str) -> Any:
    """Return an attribute that every type has, without code of its metaclass.

    Example:
        >>> attribute(int, "__name__")
        'int'
    """
    return type.__dict__[name].__get__(kind)
