"""Optional features that the core offers without importing: charts, exports, extras.

`kerasmem/registered.py` registers the location of each feature when kerasmem is
imported. The module of a feature is imported on first use.
"""

import sys
from collections.abc import Callable, Mapping, Sequence
from pkgutil import resolve_name
from typing import Any

_PLACES: dict[str, str] = {}
_REGISTERED = "kerasmem.registered"
"""Module that registers all features. It imports this module, so it cannot be imported
above. A script named `kerasmem.py` calls `feature` before this import."""


def register(places: Mapping[str, str]) -> None:
    """Registers features by name.

    For example, `{"export": "kerasmem.extras.litert:export"}`.
    """
    _PLACES.update(places)


def feature(name: str) -> Any:
    """Returns a registered feature and imports its module if necessary.

    Raises `AttributeError` if no such feature exists.
    """
    if not _PLACES:
        resolve_name(_REGISTERED)
    if name not in _PLACES:
        raise AttributeError(f"kerasmem has no feature {name!r}.")
    return resolve_name(_PLACES[name])


def module_attributes(
    module: str, names: Sequence[str]
) -> tuple[Callable[[str], Any], Callable[[], list[str]]]:
    """Returns `__getattr__` and `__dir__` for a module with `names` as features."""

    def get(name: str) -> Any:
        if name in names:
            return feature(name)
        raise AttributeError(f"module {module!r} has no attribute {name!r}")

    def list_names() -> list[str]:
        return sorted({*vars(sys.modules[module]), *names})

    return get, list_names
