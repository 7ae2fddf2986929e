"""Which layers are compressed."""

import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from kerasmem.errors import ConfigError
from kerasmem.graph.nodes import nodes_in_order, own_graph


@dataclass(frozen=True)
class Settings:
    """What a user chose.

    Args:
        include: names of layers, or regular expressions for whole names; None for all.
        exclude: likewise, layers that are left alone.
        seed: of the rounding, from 0.
    """

    include: tuple[str, ...] | None
    exclude: tuple[str, ...]
    seed: int

    def __post_init__(self) -> None:
        if (
            isinstance(self.seed, bool)
            or not isinstance(self.seed, int)
            or self.seed < 0
        ):
            raise ConfigError(
                f"`seed` is a whole number from 0. Received: seed={self.seed!r}."
            )
        for pattern in (*(self.include or ()), *self.exclude):
            try:
                re.compile(pattern)
            except (re.error, TypeError) as error:
                raise ConfigError(
                    "`include` and `exclude` take names of layers or regular "
                    f"expressions for whole names. Received: {pattern!r} ({error})."
                ) from error

    def chosen(self, operation: Any) -> bool:
        """Return whether the layer or operation is compressed."""
        name = operation.name
        wanted = self.include is None or _matches(name, self.include)
        return wanted and not _matches(name, self.exclude)

    def check(self, model: Any) -> None:
        """Raise a ConfigError if a name or pattern matches nothing in `model`."""
        names = _names(model)
        for pattern in (*(self.include or ()), *self.exclude):
            if not any(_matches(name, (pattern,)) for name in names):
                raise ConfigError(
                    "`include` and `exclude` name layers of the model. Received: "
                    f"{pattern!r}, which matches none of {sorted(names)[:10]}."
                )


def _names(model: Any) -> set[str]:
    names: set[str] = set()
    for node in nodes_in_order(own_graph(model)):
        names.add(node.operation.name)
        if own_graph(node.operation) is not None:
            names |= _names(node.operation)
    return names


def _matches(name: str, patterns: Iterable[str]) -> bool:
    return any(re.fullmatch(pattern, name) for pattern in patterns)
