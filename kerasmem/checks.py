"""Validation of arguments, and of dataclass fields by their annotations.

All rules raise the error of `invalid`. This module does not import Keras, so that the
command line can derive its options from configs.
"""

import math
import numbers
import operator
import re
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from functools import cache
from types import NoneType, UnionType
from typing import Annotated, Any, Union, get_args, get_origin, get_type_hints

from kerasmem.errors import ConfigError, as_received, did_you_mean

BACKENDS = ("tensorflow", "jax", "torch")
"""Names of the supported Keras backends."""
_LONGEST = 200
"""Maximum characters of a value in a message. For longer values, only the type is
shown."""


def invalid(owner: str, name: str, value: Any, expected: str) -> ConfigError:
    """Returns the error for an invalid argument of the class or function `owner`.

    Example:
        >>> print(invalid("Prune", "seed", -1, "a whole number from 0"))
        The argument `seed` of Prune must be a whole number from 0. Received: seed=-1.
    """
    text = repr(value)
    if len(text) > _LONGEST or "\n" in text:
        text = as_received(value)
    return ConfigError(
        f"The argument `{name}` of {owner} must be {expected}. Received: {name}={text}."
    )


@dataclass(frozen=True)
class OneOf:
    """Rule: one of the `allowed` values. 1 and `True` are different."""

    allowed: tuple[Any, ...]

    def check(self, owner: str, name: str, value: Any) -> Any:
        """Returns the value, or raises `ConfigError`."""
        kind = str if isinstance(value, str) else type(value)
        for one in self.allowed:
            if type(one) is kind and one == value:
                return one
        names = [*map(str, self.allowed)]
        error = invalid(owner, name, value, f"one of {', '.join(names)}")
        raise ConfigError(f"{error}{did_you_mean(value, names)}")


@dataclass(frozen=True)
class InstanceOf:
    """Rule: an instance of `kind`. `what` describes the class in messages."""

    kind: type | tuple[type, ...]
    what: str

    def check(self, owner: str, name: str, value: Any) -> Any:
        """Returns the value, or raises `ConfigError`."""
        if isinstance(value, self.kind):
            return value
        raise invalid(owner, name, value, self.what)


@dataclass(frozen=True)
class Whole:
    """Rule: an integer from `least` to `most`.

    `what` describes the value in messages.
    """

    least: int
    most: int | None = None
    what: str = "a whole number"

    def check(self, owner: str, name: str, value: Any) -> int:
        """Returns the value as an int, or raises `ConfigError`."""
        is_whole = type(value) is int or (
            isinstance(value, numbers.Integral) and not isinstance(value, bool)
        )
        most = math.inf if self.most is None else self.most
        if is_whole and self.least <= int(value) <= most:
            return int(value)
        limit = "" if self.most is None else f" to {self.most}"
        raise invalid(owner, name, value, f"{self.what} from {self.least}{limit}")


@dataclass(frozen=True)
class Real:
    """Rule: a finite number in an interval.

    The limits `least` and `most` are inclusive, `above` and `below` exclusive. `None`
    is no limit. `what` describes the value in messages.
    """

    what: str = "a number"
    least: float | None = None
    most: float | None = None
    above: float | None = None
    below: float | None = None

    def check(self, owner: str, name: str, value: Any) -> float:
        """Returns the value as an int or a float, or raises `ConfigError`."""
        of_all = (
            ("at least", operator.ge, self.least),
            ("above", operator.gt, self.above),
            ("less than", operator.lt, self.below),
            ("at most", operator.le, self.most),
        )
        limits = [(words, fits, n) for words, fits, n in of_all if n is not None]
        number = _number(value)
        if number is not None and all(fits(number, n) for _, fits, n in limits):
            return number
        words = " and ".join(f"{words} {n:g}" for words, _, n in limits)
        raise invalid(owner, name, value, f"{self.what} {words}".rstrip())


def _number(value: Any) -> float | None:
    if isinstance(value, bool) or not isinstance(value, numbers.Real):
        return None
    number = int(value) if isinstance(value, numbers.Integral) else float(value)
    # Comparing works for integers beyond the float range and is False for NaN.
    return number if abs(number) <= sys.float_info.max else None


@dataclass(frozen=True)
class ByPattern:
    """Rule: numbers by regular expression, as a dict or a list of pairs."""

    rule: Real

    def check(self, owner: str, name: str, value: Any) -> tuple[tuple[str, float], ...]:
        """Returns pairs (regular expression, number), or raises `ConfigError`."""
        valid = "pairs of a regular expression and a number"
        items = value.items() if isinstance(value, Mapping) else value
        pairs = _entries(owner, name, items, valid)
        for pair in pairs:
            is_list = isinstance(pair, Sequence) and not isinstance(pair, str)
            if not is_list or len(pair) != 2:
                raise invalid(owner, name, pair, valid)
            _check_regular_expression(owner, name, pair[0])
        return tuple(
            (pattern, self.rule.check(owner, f"{name}[{pattern!r}]", number))
            for pattern, number in pairs
        )


class RegularExpressions:
    """Rule: one or several regular expressions."""

    def __repr__(self) -> str:
        """Returns the name, for signatures in `help`."""
        return "PATTERNS"

    def check(self, owner: str, name: str, value: Any) -> tuple[str, ...]:
        """Returns a tuple of regular expressions, or raises `ConfigError`."""
        valid = "a list of regular expressions"
        if isinstance(value, Mapping | bytes):
            raise invalid(owner, name, value, valid)
        items = (value,) if isinstance(value, str) else value
        patterns = _entries(owner, name, items, valid)
        for pattern in patterns:
            _check_regular_expression(owner, name, pattern)
        return patterns


def _entries(owner: str, name: str, value: Any, valid: str) -> tuple[Any, ...]:
    try:
        return tuple(value)
    except TypeError as error:  # also raised for a NumPy array without axes
        raise invalid(owner, name, value, valid) from error


def _check_regular_expression(owner: str, name: str, pattern: Any) -> None:
    try:
        re.compile(pattern)
    except (re.error, TypeError) as error:
        valid = f"a list of regular expressions ({error})"
        raise invalid(owner, name, pattern, valid) from error


PATTERNS = RegularExpressions()
Patterns = Annotated[tuple[str, ...], PATTERNS]
"""One or several regular expressions. See `kerasmem.compression.account`."""


def rule_of(hint: Any) -> tuple[Any, Any, bool]:
    """Returns the type and the rule of an annotation, and whether `None` is allowed.

    The rule is the first metadata of `Annotated`: an object with `check`, or a tuple of
    allowed values. Without metadata, only `bool` has a rule.
    """
    is_optional = get_origin(hint) in (Union, UnionType) and NoneType in get_args(hint)
    if is_optional:
        hint, *others = (each for each in get_args(hint) if each is not NoneType)
        hint = Any if others else hint
    is_annotated = get_origin(hint) is Annotated
    kind, rule = get_args(hint)[:2] if is_annotated else (hint, None)
    rule = (True, False) if kind is bool else rule
    return kind, OneOf(rule) if isinstance(rule, tuple) else rule, is_optional


@cache
def rules_of(cls: Any) -> dict[str, tuple[Any, Any, bool]]:
    """Returns `rule_of` for each init field of a dataclass, by name."""
    hints = get_type_hints(cls, include_extras=True)
    names = (field.name for field in fields(cls) if field.init)
    return {name: rule_of(hints[name]) for name in names}


class Checked:
    """Base class of dataclasses that validate their fields by annotation.

    A field is set to the value returned by its rule. Fields without a rule and allowed
    `None` values are not checked.

    Raises:
        ConfigError: If a value is invalid.
    """

    def __post_init__(self) -> None:
        owner = type(self).__name__
        for name, (_, rule, is_optional) in rules_of(type(self)).items():
            value = getattr(self, name)
            if rule is not None and not (is_optional and value is None):
                object.__setattr__(self, name, rule.check(owner, name, value))
