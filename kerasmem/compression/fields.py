"""What the fields of a config may be: checked by their annotations, read from JSON.

It imports no Keras, so that the command line can read its options from configs.
"""

import re
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, fields
from functools import cache
from types import NoneType, UnionType
from typing import Annotated, Any, Union, get_args, get_origin, get_type_hints

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


PATTERNS = "regular expressions"
Patterns = Annotated[tuple[str, ...], PATTERNS]
"""One or several regular expressions; see `weight_patterns` for what they match."""


def check_fields(config: Any) -> None:
    """Raise unless every field of a dataclass has a value that its annotation allows.

    An annotation is `bool`, `Annotated` with the tuple of allowed texts or with a
    `Whole`, or `Patterns`, which become a tuple; all of them also with `| None`. Other
    fields are not looked at.

    Raises:
        ConfigError: with the field, what it may be, and the value received.
    """
    owner = type(config).__name__
    for name, (kind, rule, is_optional) in rules_of(type(config)).items():
        value = getattr(config, name)
        if is_optional and value is None:
            continue
        if rule == PATTERNS:
            object.__setattr__(config, name, regular_expressions(owner, name, value))
        elif isinstance(rule, Whole):
            check_whole(f"{name} of {owner}", value, rule.least, rule.most)
        elif kind is bool:
            _check_choice(owner, name, value, (True, False))
        elif isinstance(rule, tuple):
            _check_choice(owner, name, value, rule)


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


def check_share(what: str, value: Any, name: str) -> None:
    """Raise unless a value is a share in [0, 1).

    Args:
        what: what it is a share of, to begin the message with.
        value: the value.
        name: of the argument.

    Raises:
        ConfigError: with the value received.
    """
    if not is_number(value) or not 0 <= value < 1:
        raise ConfigError(
            f"{what}, at least 0 and less than 1. Received: {name}={value!r}."
        )


def pairs_of(owner: str, field: str, value: Any) -> tuple[tuple[str, Any], ...]:
    """Return the pairs of a regular expression and a number that a caller gave.

    Args:
        owner: class name of the technique, for the message.
        field: the argument that they came in.
        value: a dict, or a list of pairs.

    Raises:
        ConfigError: if it is neither.
    """
    pairs = list(value.items()) if isinstance(value, Mapping) else list(value)
    for pair in pairs:
        if not isinstance(pair, Sequence) or isinstance(pair, str) or len(pair) != 2:
            raise ConfigError(
                f"The {field} of {owner} are pairs of a regular expression and a "
                f"number. Received: {pair!r}."
            )
        _check_regular_expression(owner, field, pair[0])
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
