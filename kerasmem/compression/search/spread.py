"""The same thing done to several families, one after the other."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from kerasmem.compression.search.trials import Trials


@dataclass(frozen=True)
class Choice:
    """A family, and how far it is taken.

    Args:
        family: its name.
        strength: how much of it.
        most: the most of it that can be applied.
    """

    family: str
    strength: float = 0.0
    most: float = 1.0


Branch = Callable[[Trials, Choice], Any]
"""Some trials of one family, each of which may depend on those before it."""

Spread = Callable[[Trials, Branch, Sequence[Choice]], list[Any]]
"""Runs a branch for every choice, and returns what they return, in that order."""


def in_turn(trials: Trials, branch: Branch, choices: Sequence[Choice]) -> list[Any]:
    """Return what a branch returns for every choice, in this process."""
    return [branch(trials, choice) for choice in choices]
