"""Plain data from a text that anybody may have written, and records made of it."""

import json
import math
import re
from collections.abc import Callable, Iterable
from dataclasses import is_dataclass
from functools import cache, partial
from typing import Annotated, Any, ClassVar, Self, TypeVar, get_args, get_origin

from kerasmem.checks import InstanceOf, Real, Whole, rule_of, rules_of
from kerasmem.errors import InputError
from kerasmem.units import MIB, format_bytes

MOST_BYTES = 16 * MIB
"""Of a text of JSON: the config of a model takes a few."""

_BYTES_A_VALUE, _MOST_DEPTH = 8, 200
_ESCAPED_HALF = re.compile(r"\\u[dD]")
"""Of a character; without the other half nobody can write it to a file."""

_MOST_WHOLE = (1 << 53) - 1
"""Pages count in floats, and add up several; memory of 8 PiB is not met."""

_RULES = {str: InstanceOf(str, "a text"), int: Whole(0, _MOST_WHOLE), float: Real()}


class _OrNaN:
    def check(self, owner: str, name: str, value: Any) -> float:
        # NaN is the one value that is not equal to itself.
        is_missing = value is None or value != value
        return math.nan if is_missing else _RULES[float].check(owner, name, value)


class _AnyNumber:
    def check(self, owner: str, name: str, value: Any) -> float:
        # Not a whole number: one too large for its place is no number to NumPy.
        is_float = isinstance(value, float)
        return float(value if is_float else _RULES[float].check(owner, name, value))


OrNaN = Annotated[float, _OrNaN()]
"""A number of a record that is NaN where there is none; JSON has null for it."""

AnyNumber = Annotated[float, _AnyNumber()]
"""A number of a record that may be NaN or infinite, as Python writes them as JSON."""

_Record = TypeVar("_Record")


def read_json(
    content: str | bytes,
    most_bytes: int = MOST_BYTES,
    object_hook: Callable[[dict[str, Any]], Any] | None = None,
) -> Any:
    """Return what a text of JSON says, if that is no more than plain data ever is.

    Args:
        content: the text.
        most_bytes: of the text; it may have one value for eight of them, lest it takes
            up more than ten times its size.
        object_hook: as of `json.loads`.

    Raises:
        InputError: if it is no JSON, or too large, or too deep.

    Example:
        >>> read_json('{"a": [1, null]}')
        {'a': [1, None]}
    """
    if isinstance(content, bytes):
        try:
            content = content.decode()
        except UnicodeDecodeError as error:
            raise InputError(f"It is no text: {error}.") from error
    values = content.count(",")
    if len(content) > most_bytes or values > most_bytes // _BYTES_A_VALUE:
        raise InputError(
            f"The JSON is too large. Expected: {format_bytes(most_bytes)} and "
            f"{most_bytes // _BYTES_A_VALUE} values at most. Received: "
            f"{format_bytes(len(content))} with {values} commas."
        )
    try:
        value = json.loads(content, object_hook=object_hook)
        if _ESCAPED_HALF.search(content):
            json.dumps(value, ensure_ascii=False).encode()
    except (ValueError, RecursionError, MemoryError) as error:
        raise InputError(f"It cannot be read: {error}.") from error
    if content.count("[") + content.count("{") > _MOST_DEPTH:
        check_depth(value)
    return value


def check_depth(value: Any) -> None:
    """Raise if plain data has lists in lists too deep to walk.

    Raises:
        InputError: if it is so.
    """
    level, depth = [value], 0
    while level:
        depth += 1
        if depth > _MOST_DEPTH:
            raise InputError(
                f"Lists are within lists {depth} levels deep. Expected: "
                f"{_MOST_DEPTH} at most."
            )
        level = [part for each in level for part in _parts(each)]


def _parts(value: Any) -> Iterable[Any]:
    kind = type(value)  # pyright: ignore[reportUnknownVariableType]
    if kind is dict:
        return value.values()
    return value if kind is list else ()


def record_from(cls: type[_Record], content: Any) -> _Record:
    """Return a record made of plain data, every field of the type that it has.

    A whole number is at least 0 and below 2^53, and other numbers are finite.

    Args:
        cls: a dataclass whose fields are numbers, texts, other records, tuples or
            dicts of one kind, or None.
        content: values by the names of the fields; those with a default may be missing.

    Raises:
        InputError: if a field is missing, unknown or of another type.
    """
    readers = _readers(cls)
    values = _DICT.check(cls.__name__, "content", content)
    try:
        return cls(**{name: readers[name](value) for name, value in values.items()})
    except (KeyError, TypeError) as error:
        raise InputError(
            f"A {cls.__name__} has the fields {', '.join(readers)}; those with a "
            f"default may be missing. Received: {', '.join(values)}."
        ) from error


class JsonRecord:
    """A record that is one line of JSON."""

    __dataclass_fields__: ClassVar[dict[str, Any]]

    def to_json(self) -> str:
        """Return it as one line of JSON, with null for an `OrNaN` that is NaN."""
        # Not by `asdict`, which copies deeply: this is part of what watching costs.
        return json.dumps(self, default=_fields)

    @classmethod
    def from_json(cls, text: str) -> Self:
        """Return the record that `to_json` described.

        Raises:
            InputError: if it is none.
        """
        return record_from(cls, read_json(text))


def _fields(record: object) -> dict[str, Any]:
    own = vars(record)
    return own | {n: None for n in _nullable(type(record)) if math.isnan(own[n])}


@cache
def _nullable(cls: Any) -> tuple[str, ...]:
    rules = rules_of(cls)
    return tuple(name for name, rule in rules.items() if rule == rule_of(OrNaN))


@cache
def _readers(cls: Any) -> dict[str, Callable[[Any], Any]]:
    rules = rules_of(cls)
    return {name: reader_of(cls.__name__, name, rules[name]) for name in rules}


def reader_of(
    owner: str, name: str, rule: tuple[Any, Any, bool]
) -> Callable[[Any], Any]:
    """Return a function that checks and converts the plain data of one field.

    It raises `InputError` for a value that the rule does not allow.

    Args:
        owner: Name of the record, for messages.
        name: Name of the field.
        rule: As `rule_of` returns it.
    """
    kind, own, is_optional = rule
    if is_optional:
        read = reader_of(owner, name, (kind, own, False))
        return lambda value: None if value is None else read(value)
    if isinstance(kind, type) and is_dataclass(kind):
        return partial(record_from, kind)
    if get_origin(kind) is dict:
        read = reader_of(owner, name, rule_of(get_args(kind)[1]))
        return lambda value: {
            key: read(each) for key, each in _DICT.check(owner, name, value).items()
        }
    if get_origin(kind) is tuple:
        read = reader_of(owner, name, rule_of(get_args(kind)[0]))
        return lambda value: tuple(map(read, _LIST.check(owner, name, value)))
    return partial((own or _RULES[kind]).check, owner, name)


_DICT, _LIST = InstanceOf(dict, "a dict"), InstanceOf(list, "a list")
