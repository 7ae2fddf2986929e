"""The choice of which weights become zero, and when."""

import re
from contextlib import AbstractContextManager
from dataclasses import KW_ONLY, dataclass
from typing import Any, ClassVar

from kerasmem.compression.prune.apply import prunable, prune_weights
from kerasmem.compression.prune.masks import zeros_kept
from kerasmem.compression.technique import Technique
from kerasmem.errors import ConfigError
from kerasmem.records import WeightChange

SCOPES = ("layer", "global")


@dataclass(frozen=True)
class Prune(Technique):
    """Set the smallest weights of kernels and embedding tables to zero.

    In `km.compress` all are set at once. In `km.callbacks.Pruning` the sparsity rises
    from 0 over the part of the training from `begin` to `end`, fast at first.

    Args:
        sparsity: share of the weights that becomes zero, in [0, 1).
        scope: `"layer"` removes this share from every weight array; `"global"`
            removes it from all together, more where the weights matter less.
        begin: share of the training steps after which pruning begins, in [0, 1].
        end: share of the training steps after which `sparsity` is reached, in [0, 1];
            equal to `begin` for all at once.
        exclude: regular expressions; a weight whose path holds one is left alone.

    Raises:
        ConfigError: if a value is out of its range.

    Example:
        >>> Prune(0.8).to_json()["sparsity"]
        0.8
    """

    sparsity: float
    _: KW_ONLY
    scope: str = "layer"
    begin: float = 0.0
    end: float = 0.5
    exclude: tuple[str, ...] = ()

    name: ClassVar[str] = "prune"
    trains_on: ClassVar[bool] = True

    def __post_init__(self) -> None:
        if not _is_number(self.sparsity) or not 0 <= self.sparsity < 1:
            raise ConfigError(
                "The sparsity of Prune is the share of weights that becomes zero, at "
                f"least 0 and less than 1. Received: sparsity={self.sparsity!r}."
            )
        if self.scope not in SCOPES:
            raise ConfigError(
                f"The scope of Prune must be one of {', '.join(SCOPES)}. "
                f"Received: scope={self.scope!r}."
            )
        if not all(map(_is_number, (self.begin, self.end))) or not (
            0 <= self.begin <= self.end <= 1
        ):
            raise ConfigError(
                "The begin and end of Prune are shares of the training with "
                "0 <= begin <= end <= 1. "
                f"Received: begin={self.begin!r}, end={self.end!r}."
            )
        object.__setattr__(self, "exclude", _patterns(self.exclude))

    def apply(self, model: Any) -> list[WeightChange]:
        """Set the smallest weights of `model` to zero, in place and at once."""
        return prune_weights(model, self)

    def preserved(self, model: Any) -> AbstractContextManager[None]:
        """Return a scope in which the zeros of `model` stay zero while it trains."""
        return zeros_kept(model, [w.variable for w in prunable(model, self)])


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _patterns(exclude: Any) -> tuple[str, ...]:
    patterns = (exclude,) if isinstance(exclude, str) else tuple(exclude)
    for pattern in patterns:
        try:
            re.compile(pattern)
        except (re.error, TypeError) as error:
            raise ConfigError(
                "The exclude of Prune holds regular expressions. "
                f"Received: {pattern!r}, which is none: {error}."
            ) from error
    return patterns
