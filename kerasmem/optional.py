"""Features that the core offers but does not import: charts, exports, extras.

`kerasmem/registered.py` registers where each one is when kerasmem is imported. The
module of a feature is imported when the feature is first used.
"""

from collections.abc import Mapping
from pkgutil import resolve_name
from typing import Any

_PLACES: dict[str, str] = {}


def register(places: Mapping[str, str]) -> None:
    """Register features.

    Args:
        places: The place of each feature by its name, such as
            `{"log_run": "kerasmem.extras.trackers:log_run"}`.
    """
    _PLACES.update(places)


def feature(name: str) -> Any:
    """Return a feature, and import its module if that is necessary.

    Args:
        name: The name under which it was registered.

    Raises:
        AttributeError: If there is no such feature.
    """
    if name not in _PLACES:
        raise AttributeError(f"kerasmem has no feature {name!r}.")
    return resolve_name(_PLACES[name])
