"""Safe parsing of untrusted JSON, and conversion to records."""

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
"""Maximum size of a JSON text. The config of a model takes a few MiB."""

_BYTES_A_VALUE, _MOST_DEPTH = 8, 200
_ESCAPED_HALF = re.compile(r"\\u[dD]")
"""Half of an escaped surrogate pair. An unpaired half cannot be encoded as UTF-8."""

_MOST_WHOLE = (1 << 53) - 1
"""Largest exact integer in a float, as used by the pages. Corresponds to 8 PiB."""

_RULES = {str: InstanceOf(str, "a text"), int: Whole(0, _MOST_WHOLE), float: Real()}


class _OrNaN:
    def check(self, owner: str, name: str, value: Any) -> float:
        # NaN is not equal to itself.
        is_missing = value is None or value != value
        return math.nan if is_missing else _RULES[float].check(owner, name, value)


class _AnyNumber:
    def check(self, owner: str, name: str, value: Any) -> float:
        # NumPy cannot convert an integer beyond 64 bits.
        is_float = isinstance(value, float)
        return float(value if is_float else _RULES[float].check(owner, name, value))


OrNaN = Annotated[float, _OrNaN()]
"""A float field that may be NaN. JSON stores NaN as null."""

AnyNumber = Annotated[float, _AnyNumber()]
"""A float field that may be NaN or infinite. JSON stores Python's literals."""

_Record = TypeVar("_Record")


def read_json(
    content: str | bytes,
    most_bytes: int = MOST_BYTES,
    object_hook: Callable[[dict[str, Any]], Any] | None = None,
) -> Any:
    """Parses JSON of limited size and depth. Raises `InputError` for other content.

    Args:
        content: JSON text or bytes.
        most_bytes: Maximum size. One value is allowed per eight bytes, so that the
            parsed data takes at most ten times this size. Defaults to `MOST_BYTES`.
        object_hook: See `json.loads`.

    Example:
        >>> read_json('{"a": [1, null]}')
        {'a': [1, None]}
    """
    if isinstance(content, bytes):
        try:
            content = content.decode()
        except UnicodeDecodeError as error:
            raise InputError(f"The content is no text: {error}.") from error
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
    """Raises `InputError` if lists or dicts are nested too deeply."""
    level, depth = [value], 0
    while level:
        depth += 1
        if depth > _MOST_DEPTH:
            raise InputError(
                f"The data is nested too deeply. Expected: {_MOST_DEPTH} levels at "
                f"most. Received: {depth}."
            )
        level = [part for each in level for part in _parts(each)]


def _parts(value: Any) -> Iterable[Any]:
    kind = type(value)  # pyright: ignore[reportUnknownVariableType]
    if kind is dict:
        return value.values()
    return value if kind is list else ()


def record_from(cls: type[_Record], content: Any) -> _Record:
    """Returns a dataclass `cls` from plain data and checks the type of every field.

    Fields may be numbers, strings, records, tuples, dicts or `None`. Integers must be
    in [0, 2^53), and other numbers must be finite. Fields with a default may be
    missing.

    Raises `InputError` if a field is missing, unknown or of the wrong type.
    """
    readers = _readers(cls)
    values = _DICT.check(cls.__name__, "content", content)
    try:
        return cls(**{name: readers[name](value) for name, value in values.items()})
    except (KeyError, TypeError) as error:
        raise InputError(
            f"Invalid fields of {cls.__name__}. Expected: {', '.join(readers)}; those "
            f"with a default may be missing. Received: {', '.join(values)}."
        ) from error


class JsonRecord:
    """Base class of records stored as one line of JSON."""

    __dataclass_fields__: ClassVar[dict[str, Any]]

    def to_json(self) -> str:
        """Returns one line of JSON. NaN in an `OrNaN` field becomes null."""
        # `asdict` copies deeply and would slow down monitoring.
        return json.dumps(self, default=_fields)

    @classmethod
    def from_json(cls, text: str) -> Self:
        """Returns the record stored by `to_json`.

        Raises `InputError` for other text.
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
    """Returns a function that checks and converts the plain data of one field.

    The function raises `InputError` for an invalid value. `rule` is a result of
    `rule_of`; `owner` and `name` are for messages.
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
