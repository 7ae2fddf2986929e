"""Checks of arguments, and of the fields of configs and records by their annotations.

The rules raise errors of one form, that of `invalid`. This module imports no Keras, so
that the command line can read its options from configs.
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
"""Names of the Keras backends that kerasmem supports."""
_LONGEST = 200
"""Characters of a value in a message; of a longer one the type is named."""


def invalid(owner: str, name: str, value: Any, expected: str) -> ConfigError:
    """Return the error of an argument with an invalid value.

    Args:
        owner: Name of the class or function.
        name: Name of the argument.
        value: The value.
        expected: Description of valid values.

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
    """The rule of a value that is one of several.

    Args:
        allowed: The values. 1 is not True.
    """

    allowed: tuple[Any, ...]

    def check(self, owner: str, name: str, value: Any) -> Any:
        """Return the value, or raise `ConfigError`; see `invalid`."""
        kind = str if isinstance(value, str) else type(value)
        for one in self.allowed:
            if type(one) is kind and one == value:
                return one
        names = [*map(str, self.allowed)]
        error = invalid(owner, name, value, f"one of {', '.join(names)}")
        raise ConfigError(f"{error}{did_you_mean(value, names)}")


@dataclass(frozen=True)
class InstanceOf:
    """The rule of an object of a class.

    Args:
        kind: The class, or several.
        what: Description, for the message.
    """

    kind: type | tuple[type, ...]
    what: str

    def check(self, owner: str, name: str, value: Any) -> Any:
        """Return the value, or raise `ConfigError`; see `invalid`."""
        if isinstance(value, self.kind):
            return value
        raise invalid(owner, name, value, self.what)


@dataclass(frozen=True)
class Whole:
    """The rule of a whole number.

    Args:
        least: The smallest allowed.
        most: The largest allowed; None for any.
        what: Description, for the message.
    """

    least: int
    most: int | None = None
    what: str = "a whole number"

    def check(self, owner: str, name: str, value: Any) -> int:
        """Return the value as an int, or raise `ConfigError`; see `invalid`."""
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
    """The rule of a finite number in an interval.

    Args:
        what: Description, for the message.
        least: The smallest allowed; None for any.
        most: The largest allowed; None for any.
        above: Exclusive lower limit; None for none.
        below: Exclusive upper limit; None for none.
    """

    what: str = "a number"
    least: float | None = None
    most: float | None = None
    above: float | None = None
    below: float | None = None

    def check(self, owner: str, name: str, value: Any) -> float:
        """Return the value as an int or a float, or raise `ConfigError`."""
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
    # Compared, an int that is too long for a float is no error, and NaN is less.
    return number if abs(number) <= sys.float_info.max else None


@dataclass(frozen=True)
class ByPattern:
    """The rule of numbers by regular expression: a dict, or a list of pairs.

    Args:
        rule: The rule of each number.
    """

    rule: Real

    def check(self, owner: str, name: str, value: Any) -> tuple[tuple[str, float], ...]:
        """Return pairs of a regular expression and a number, or raise `ConfigError`."""
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
    """The rule of one or several regular expressions."""

    def check(self, owner: str, name: str, value: Any) -> tuple[str, ...]:
        """Return the regular expressions as a tuple, or raise `ConfigError`."""
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
    except TypeError as error:  # so does an array of NumPy without axes
        raise invalid(owner, name, value, valid) from error


def _check_regular_expression(owner: str, name: str, pattern: Any) -> None:
    try:
        re.compile(pattern)
    except (re.error, TypeError) as error:
        valid = f"a list of regular expressions ({error})"
        raise invalid(owner, name, pattern, valid) from error


PATTERNS = RegularExpressions()
Patterns = Annotated[tuple[str, ...], PATTERNS]
"""One or several regular expressions; see `kerasmem.compression.account`."""


def rule_of(hint: Any) -> tuple[Any, Any, bool]:
    """Return the type, the rule, and whether None is allowed, of an annotation.

    The rule is the first object that `Annotated` adds to the type: one with `check`, or
    a tuple of the allowed values. Without one it is None, except for a bool.
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
    """Return the `rule_of` each field of a dataclass that is an argument."""
    hints = get_type_hints(cls, include_extras=True)
    names = (field.name for field in fields(cls) if field.init)
    return {name: rule_of(hints[name]) for name in names}


class Checked:
    """The base of a dataclass whose fields are checked by their annotations.

    A field becomes the value that its rule returns. Fields without a rule are not
    checked, and neither is None where the annotation allows it.

    Raises:
        ConfigError: if a value is invalid.
    """

    def __post_init__(self) -> None:
        owner = type(self).__name__
        for name, (_, rule, is_optional) in rules_of(type(self)).items():
            value = getattr(self, name)
            if rule is not None and not (is_optional and value is None):
                object.__setattr__(self, name, rule.check(owner, name, value))
