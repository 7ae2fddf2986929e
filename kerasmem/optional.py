"""Features that the core offers but does not import: charts, exports, extras.

`kerasmem/registered.py` registers where each one is when kerasmem is imported. The
module of a feature is imported when the feature is first used.
"""

import sys
from collections.abc import Callable, Mapping, Sequence
from pkgutil import resolve_name
from typing import Any

_PLACES: dict[str, str] = {}
_REGISTERED = "kerasmem.registered"
"""The module that registers all features. It imports this one, so it is not imported
above; a script named `kerasmem.py` calls `feature` before it is imported."""


def register(places: Mapping[str, str]) -> None:
    """Register features.

    Args:
        places: The place of each feature by its name, such as
            `{"export": "kerasmem.extras.litert:export"}`.
    """
    _PLACES.update(places)


def feature(name: str) -> Any:
    """Return a feature, and import its module if that is necessary.

    Args:
        name: The name under which it was registered.

    Raises:
        AttributeError: If there is no such feature.
    """
    if not _PLACES:
        resolve_name(_REGISTERED)
    if name not in _PLACES:
        raise AttributeError(f"kerasmem has no feature {name!r}.")
    return resolve_name(_PLACES[name])


def module_attributes(
    module: str, names: Sequence[str]
) -> tuple[Callable[[str], Any], Callable[[], list[str]]]:
    """Return `__getattr__` and `__dir__` of a module with features among its names.

    Args:
        module: The name of the module.
        names: Its public names.
    """

    def get(name: str) -> Any:
        if name in names:
            return feature(name)
        raise AttributeError(f"module {module!r} has no attribute {name!r}")

    def list_names() -> list[str]:
        return sorted({*vars(sys.modules[module]), *names})

    return get, list_names
