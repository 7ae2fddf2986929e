"""What of a model is computed with codes, and which tensors share their codes."""

import math
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, field

from kerasmem.compression.quantize.activations.calls import Calls
from kerasmem.compression.quantize.activations.search import with_zero
from kerasmem.compression.quantize.static.base import Codes
from kerasmem.compression.quantize.static.kinds import OpSpec
from kerasmem.errors import ConfigError

Ranges = Mapping[str, tuple[float, float]]
"""Pairs of ends by the name of a tensor."""


@dataclass(frozen=True)
class Step:
    """One call that is computed with codes.

    Args:
        kind: how.
        inputs: numbers of the tensors that go in, whose codes count.
        output: number of the one that comes out, after the activation within it.
        activation: None, `"relu"` or `"relu6"`.
        keeps_mask: whether a mask goes through it.
    """

    kind: OpSpec
    inputs: tuple[int, ...]
    output: int
    activation: str | None
    keeps_mask: bool


@dataclass
class Plan:
    """What becomes of every call.

    Args:
        calls: all of them.
        same: numbers of tensors by those of their equals.
        steps: the calls that are computed with codes, by name.
        gone: names of those that others do.
        reasons: why the others stay float, by name.
        shared: numbers of tensors by those of tensors that have the same codes.
        fixed: codes of tensors that can have no others, by their numbers.
        floats: numbers of what products give as floats, for only floats go on with it.
    """

    calls: Calls
    same: dict[int, int] = field(default_factory=dict)
    steps: dict[str, Step] = field(default_factory=dict)
    gone: set[str] = field(default_factory=set)
    reasons: dict[str, str] = field(default_factory=dict)
    shared: dict[int, int] = field(default_factory=dict)
    fixed: dict[int, Codes] = field(default_factory=dict)
    floats: set[int] = field(default_factory=set)

    def number(self, tensor: int) -> int:
        """Return the number of a tensor, or of the one that it is."""
        return _root(self.same, tensor)

    def ends_in(self, tensor: int) -> bool:
        """Return True for a tensor that the model returns."""
        return tensor in map(self.number, self.calls.outputs)

    @property
    def coded(self) -> set[str]:
        """The names of the tensors that have codes."""
        every = (n for s in self.steps.values() for n in (*s.inputs, s.output))
        return {self.calls.names[number] for number in set(every) - self.floats}

    def has_fixed_codes(self, tensor: int) -> bool:
        """Return True for a tensor that shares its codes with one of `fixed`."""
        root = _root(self.shared, tensor)
        return any(_root(self.shared, number) == root for number in self.fixed)

    def codes(self, ranges: Ranges) -> dict[int, Codes]:
        """Return the codes of every tensor that has some, by its number.

        Args:
            ranges: ends of what each tensor takes, by its name.

        Raises:
            ConfigError: if one is missing, or is none.
        """
        found = {}
        for members in self._groups():
            certain = [self.fixed[n] for n in members if n in self.fixed]
            if certain:
                found |= dict.fromkeys(members, certain[0])
                continue
            ends = [_ends(ranges, self.calls.names[n]) for n in self._decisive(members)]
            low, high = with_zero(min(e[0] for e in ends), max(e[1] for e in ends))
            found |= dict.fromkeys(members, Codes.of_range(low, high))
        return found

    def needed(self) -> list[str]:
        """Return the names of the tensors whose ranges `codes` takes."""
        return [
            self.calls.names[number]
            for members in self._groups()
            if not any(number in self.fixed for number in members)
            for number in self._decisive(members)
        ]

    def _groups(self) -> list[list[int]]:
        """Return the numbers of tensors that have codes, those that share them."""
        groups = defaultdict(list)
        for step in self.steps.values():
            for number in (*step.inputs, step.output):
                if number not in self.floats:
                    groups[_root(self.shared, number)].append(number)
        return list(groups.values())

    def _decisive(self, members: list[int]) -> list[int]:
        """Return those whose ranges the others have, in order."""
        makers = {s.output for s in self.steps.values() if s.kind.keeps_scale}
        return sorted(set(members) - makers or set(members))


def join(shared: dict[int, int], one: int, two: int) -> None:
    """Make two tensors share their codes."""
    one, two = _root(shared, one), _root(shared, two)
    if one != two:
        shared[one] = two


def _root(links: Mapping[int, int], number: int) -> int:
    while number in links:
        number = links[number]
    return number


def _ends(ranges: Ranges, name: str) -> tuple[float, float]:
    if name not in ranges:
        raise ConfigError(
            "Every activation in int8 has a range. Expected: one of "
            f"{name!r}. Received: ranges of {', '.join(map(repr, list(ranges)[:5]))}..."
        )
    low, high = map(float, ranges[name])
    if not (math.isfinite(low) and math.isfinite(high) and low <= high):
        raise ConfigError(
            "A range has a lower and an upper end, both finite. "
            f"Received: ranges[{name!r}]={ranges[name]!r}."
        )
    return low, high
