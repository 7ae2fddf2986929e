"""Cached properties of types, used for checks on many objects."""

from collections.abc import Callable
from typing import Any


class KindTable(dict[type, bool]):
    """A dictionary that caches a Boolean property of types."""

    def __init__(self, asked: Callable[[type], bool]) -> None:
        super().__init__()
        self._asked = asked

    def __missing__(self, kind: type) -> bool:
        """Compute and store the value for a new type."""
        self[kind] = is_so = self._asked(kind)
        return is_so


def is_own(kind: type) -> bool:
    """Return whether a type belongs to kerasmem."""
    return module_of(kind).startswith("kerasmem.")


def module_of(kind: type) -> str:
    """Return the module name of a type, or `""` if it is not a string."""
    module = attribute(kind, "__module__")
    return module if isinstance(module, str) else ""  # Some classes define a property.


def attribute(kind: type, name: str) -> Any:
    """Return an attribute defined for every type, without calling the metaclass.

    Example:
        >>> attribute(int, "__name__")
        'int'
    """
    return type.__dict__[name].__get__(kind)
