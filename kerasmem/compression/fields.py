"""Frozen choices: fields checked by their annotations, and their way to plain data.

It imports no Keras, so that the command line can read its options from configs.
"""

import inspect
import operator
import re
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, fields, is_dataclass
from functools import cache
from pathlib import Path
from types import NoneType, UnionType
from typing import (
    TYPE_CHECKING,
    Annotated,
    Any,
    ClassVar,
    Union,
    get_args,
    get_origin,
    get_type_hints,
)

from kerasmem.errors import ConfigError, did_you_mean


@dataclass(frozen=True)
class Whole:
    """The annotation of a whole number.

    Args:
        least: the smallest allowed.
        most: the largest allowed; None for any.
    """

    least: int
    most: int | None = None


@dataclass(frozen=True)
class Real:
    """The annotation of a finite number in an interval.

    Args:
        what: what it is, for the message.
        least: the smallest allowed; None for any.
        most: the largest allowed; None for any.
        above: what it has to exceed; None for anything.
        below: what it has to stay below; None for anything.
    """

    what: str = "a number"
    least: float | None = None
    most: float | None = None
    above: float | None = None
    below: float | None = None

    def check(self, subject: str, name: str, value: Any) -> None:
        """Raise unless a value is such a number.

        Args:
            subject: what it is of, to begin the message with.
            name: of the argument.
            value: the value.

        Raises:
            ConfigError: with the interval and the value received.
        """
        limits = {field: getattr(self, field) for field in _LIMITS}
        limits = {field: n for field, n in limits.items() if n is not None}
        if not is_number(value) or not all(
            _LIMITS[field][1](value, limit) for field, limit in limits.items()
        ):
            words = [
                f"{_LIMITS[field][0]} {limit:g}" for field, limit in limits.items()
            ]
            raise ConfigError(
                f"{subject} must be {self.what} {' and '.join(words)}".rstrip()
                + f". Received: {name}={value!r}."
            )


_LIMITS = {
    "least": ("at least", operator.ge),
    "above": ("above", operator.gt),
    "below": ("less than", operator.lt),
    "most": ("at most", operator.le),
}
"""The limits of a `Real`: each in words, and what holds of a value and the limit."""


@dataclass(frozen=True)
class ByPattern:
    """The annotation of numbers by regular expression: a dict, or a list of pairs.

    Args:
        rule: of each number.
    """

    rule: Real


PATTERNS = "regular expressions"
Patterns = Annotated[tuple[str, ...], PATTERNS]
"""One or several regular expressions; see `kerasmem.compression.account`."""


@dataclass(frozen=True)
class Config:
    """A frozen choice that checks itself, and becomes plain data under its name.

    Attributes:
        tag: the key under which plain data has the name.
        name: of the class.
        hints: Sentences for arguments of other libraries that this class has not.
    """

    tag: ClassVar[str]
    name: ClassVar[str]
    hints: ClassVar[Mapping[str, str]] = {}

    if not TYPE_CHECKING:

        def __new__(cls, *_: object, **arguments: object) -> Any:
            """Raises `ConfigError` with the arguments that there are."""
            known = list(inspect.signature(cls.__init__).parameters)[1:]
            for name in arguments.keys() - set(known):
                hint = cls.hints.get(name) or did_you_mean(name, known)
                raise ConfigError(
                    f"{cls.__name__} has no argument {name!r}.{hint} Expected: "
                    f"{', '.join(known)}. Received: {name}={arguments[name]!r}."
                )
            return super().__new__(cls)

    def __post_init__(self) -> None:
        for name, value in check_fields(self).items():
            self._set(name, value)

    def to_json(self) -> dict[str, Any]:
        """Serialize the config to plain data; `from_tagged` reads it back.

        Returns:
            The name under `tag`, and each argument by its name.
        """
        values = {name: plain(getattr(self, name)) for name in rules_of(type(self))}
        return {self.tag: self.name, **values}

    def numbers(self) -> tuple[float, ...]:
        """Return the numbers that this stands for in a field of another choice.

        Returns:
            The numbers; empty for a config that stands for none.
        """
        return ()

    def _set(self, name: str, value: Any) -> None:
        object.__setattr__(self, name, value)


def plain(value: Any) -> Any:
    """Return what a field holds as plain data."""
    if isinstance(value, Config):
        return value.to_json()
    if is_dataclass(value) and not isinstance(value, type):
        return {
            field.name: plain(getattr(value, field.name)) for field in fields(value)
        }
    if isinstance(value, tuple):
        return [plain(each) for each in value]
    return str(value) if isinstance(value, Path) else value


def check_fields(config: Any) -> dict[str, Any]:
    """Raise unless every field of a dataclass has a value that its annotation allows.

    An annotation is `bool`, `Annotated` with the tuple of allowed texts, a `Whole` or a
    `Real`, or with `Patterns` or a `ByPattern`, which become a tuple; all of them also
    with `| None`. Other fields are not looked at.

    Returns:
        The values of the fields in the form that their annotations give them.

    Raises:
        ConfigError: with the field, what it may be, and the value received.
    """
    owner, values = type(config).__name__, {}
    for name, (kind, rule, is_optional) in rules_of(type(config)).items():
        value = getattr(config, name)
        if not (is_optional and value is None):
            values[name] = _checked(owner, name, value, bool if kind is bool else rule)
    return values


def _checked(owner: str, name: str, value: Any, rule: Any) -> Any:
    """Return the value of a field in the form that its rule gives it."""
    match rule:
        case Whole():
            check_whole(f"{name} of {owner}", value, rule.least, rule.most)
        case Real():
            for number in value.numbers() if isinstance(value, Config) else (value,):
                rule.check(f"The {name} of {owner}", name, number)
        case ByPattern():
            return _by_pattern(owner, name, value, rule.rule)
        case tuple():
            _check_choice(owner, name, value, rule)
        case _ if rule == PATTERNS:
            return regular_expressions(owner, name, value)
        case _ if rule is bool:
            _check_choice(owner, name, value, (True, False))
    return value


@cache
def rules_of(cls: type) -> dict[str, tuple[Any, Any, bool]]:
    """Return for each field its type, the rule in its annotation, if it may be None.

    The rule is the first thing that `Annotated` adds to the type; None without.
    """
    hints = get_type_hints(cls, include_extras=True)
    return {field.name: _rule(hints[field.name]) for field in fields(cls) if field.init}


def _rule(hint: Any) -> tuple[Any, Any, bool]:
    is_optional = get_origin(hint) in (Union, UnionType) and NoneType in get_args(hint)
    if is_optional:
        hint, *others = (each for each in get_args(hint) if each is not NoneType)
        hint = Any if others else hint
    if get_origin(hint) is Annotated:
        kind, rule = get_args(hint)[:2]
        return kind, rule, is_optional
    return hint, None, is_optional


def _check_choice(owner: str, name: str, value: Any, allowed: Sequence[Any]) -> None:
    if not any(value == one and type(value) is type(one) for one in allowed):
        raise ConfigError(
            f"The argument {name!r} of {owner} must be one of "
            f"{', '.join(map(str, allowed))}. Received: {name}={value!r}."
            f"{did_you_mean(value, map(str, allowed))}"
        )


def check_whole(what: str, value: Any, least: int, most: int | None = None) -> None:
    """Raise unless a value is a whole number from `least`.

    Args:
        what: what it is, its first word the argument, such as `"rounds of X"`.
        value: the value.
        least: the smallest allowed.
        most: the largest allowed; None for any.

    Raises:
        ConfigError: with the value received.
    """
    is_whole = isinstance(value, int) and not isinstance(value, bool)
    if not is_whole or value < least or (most is not None and value > most):
        limit = "" if most is None else f" to {most}"
        raise ConfigError(
            f"The {what} must be a whole number from {least}{limit}. Received: "
            f"{what.partition(' ')[0]}={value!r}."
        )


def is_number(value: Any) -> bool:
    """Return True for a finite int or float that is no bool."""
    is_real = isinstance(value, int | float) and not isinstance(value, bool)
    # Compared, an int that is too long for a float is no error, and NaN is less.
    return is_real and abs(value) <= sys.float_info.max


def _by_pattern(
    owner: str, field: str, value: Any, rule: Real
) -> tuple[tuple[str, float], ...]:
    """Return pairs of a regular expression and a number, of a dict or of pairs."""
    pairs = list(value.items()) if isinstance(value, Mapping) else list(value)
    for pair in pairs:
        if not isinstance(pair, Sequence) or isinstance(pair, str) or len(pair) != 2:
            raise ConfigError(
                f"The {field} of {owner} are pairs of a regular expression and a "
                f"number. Received: {pair!r}."
            )
        pattern, number = pair
        _check_regular_expression(owner, field, pattern)
        rule.check(f"One of the {field} of {owner}", f"{field}[{pattern!r}]", number)
    return tuple((pattern, number) for pattern, number in pairs)


def regular_expressions(owner: str, field: str, value: Any) -> tuple[str, ...]:
    """Return one or several regular expressions as a tuple.

    Args:
        owner: class name of the technique, for the message.
        field: the argument that they came in.
        value: a text, or a list of texts.

    Raises:
        ConfigError: if one is no regular expression.
    """
    if not isinstance(value, Iterable) or isinstance(value, Mapping | bytes):
        raise ConfigError(
            f"The {field} of {owner} is a list of regular expressions. "
            f"Received: {field}={value!r}."
        )
    patterns = (value,) if isinstance(value, str) else tuple(value)
    for pattern in patterns:
        _check_regular_expression(owner, field, pattern)
    return patterns


def _check_regular_expression(owner: str, field: str, pattern: Any) -> None:
    try:
        re.compile(pattern)
    except (re.error, TypeError) as error:
        raise ConfigError(
            f"The {field} of {owner} holds regular expressions. "
            f"Received: {pattern!r}, which is none: {error}."
        ) from error


def from_tagged(what: str, known: Mapping[str, type], config: Any, tag: str) -> Any:
    """Return the object that plain data describes, whose class one entry names.

    Args:
        what: what it is, such as `"A schedule"`, to begin a message with.
        known: the classes by name.
        config: the name under `tag`, and the arguments of the class by name.
        tag: the key of the name.

    Raises:
        ConfigError: if the name or an argument is unknown, or a value cannot be used.

    Example:
        >>> from_tagged("One", {"whole": Whole}, {"rule": "whole", "least": 1}, "rule")
        Whole(least=1, most=None)
    """
    arguments = dict(config)
    name = arguments.pop(tag, None)
    if not isinstance(name, str) or name not in known:
        raise ConfigError(
            f"{what} is one of {', '.join(known)}. Received: {tag}={name!r}."
            f"{did_you_mean(name, known)}"
        )
    return built(known[name], arguments, repr(name))


def built(cls: type, arguments: Mapping[str, Any], what: str) -> Any:
    """Return an object of a dataclass, made of plain data.

    Args:
        cls: the dataclass.
        arguments: values by the names of its fields.
        what: what it is, such as `"'prune'"`, for messages.

    Raises:
        ConfigError: if an argument is unknown, or a value cannot be used.
    """
    taken = [field.name for field in fields(cls) if field.init]
    if unknown := sorted(set(arguments) - set(taken)):
        raise ConfigError(
            f"{what} takes no {unknown[0]!r}.{did_you_mean(unknown[0], taken)} It "
            f"takes {', '.join(taken)}."
        )
    try:
        return cls(**arguments)
    except ConfigError:
        raise
    except (TypeError, ValueError, OverflowError) as error:
        why = str(error).rstrip(".")
        raise ConfigError(f"Wrong arguments for {what}: {why}.") from error


def nested(owner: str, field: str, cls: type, value: Any) -> Any:
    """Return the config that a field of another one holds, also of its plain data.

    Args:
        owner: class name of the config with the field, for messages.
        field: its name.
        cls: the class of the value.
        value: an object of it, a dict of its fields, or None, which stays None.

    Raises:
        ConfigError: if it is none of them.
    """
    if value is None or isinstance(value, cls):
        return value
    if isinstance(value, Mapping):
        return built(cls, value, f"The {field} of {owner}")
    raise ConfigError(
        f"The {field} of {owner} is a km.{cls.__name__}, or a dict of its fields. "
        f"Received: {field}={value!r}."
    )
