"""Plain data from a text that anybody may have written, and records made of it."""

import json
import math
import re
import sys
from collections.abc import Callable, Iterable, Sequence
from dataclasses import fields, is_dataclass
from functools import cache, partial
from types import NoneType, UnionType
from typing import (
    Annotated,
    Any,
    ClassVar,
    Self,
    TypeVar,
    Union,
    get_args,
    get_origin,
    get_type_hints,
)

from kerasmem.errors import InputError
from kerasmem.units import MIB, format_bytes

MOST_BYTES = 16 * MIB
"""Of a text of JSON: the config of a model takes a few."""

_BYTES_A_VALUE, _MOST_DEPTH = 8, 200
_ESCAPED_HALF = re.compile(r"\\u[dD]")
"""Of a character; without the other half nobody can write it to a file."""

OrNaN = Annotated[float, "NaN"]
"""A number of a record that is NaN where there is none; JSON has null for it."""

AnyNumber = Annotated[float, "any"]
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
    given = _checked(dict, cls.__name__, content)
    try:
        return cls(**{name: readers[name](value) for name, value in given.items()})
    except (KeyError, TypeError) as error:
        raise InputError(
            f"A {cls.__name__} has the fields {', '.join(readers)}; those with a "
            f"default may be missing. Received: {', '.join(given)}."
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
    hints = get_type_hints(cls, include_extras=True)
    return tuple(name for name, kind in hints.items() if kind == OrNaN)


@cache
def _readers(cls: Any) -> dict[str, Callable[[Any], Any]]:
    hints = get_type_hints(cls, include_extras=True)
    names = [field.name for field in fields(cls) if field.init]
    return {name: reader_of(hints[name], f"{cls.__name__}.{name}") for name in names}


def reader_of(kind: Any, name: str) -> Callable[[Any], Any]:
    """Return what makes a value of a type of plain data, or raises `InputError`.

    Args:
        kind: the type, as a field of a record is annotated; `Annotated` with the texts
            that there are.
        name: for the message.
    """
    origin, inner = get_origin(kind), get_args(kind)
    if kind in _SCALARS:
        return partial(_SCALARS[kind], name)
    if isinstance(kind, type) and is_dataclass(kind):
        return partial(record_from, kind)
    if kind == OrNaN:
        number = reader_of(float, name)
        # NaN is the one value that is not equal to itself.
        return lambda value: (
            math.nan if value is None or value != value else number(value)
        )
    if kind == AnyNumber:
        number = reader_of(float, name)
        # Not a whole number: one too large for its place is no number to NumPy.
        return lambda value: float(value if type(value) is float else number(value))
    if origin is Annotated:
        return partial(_one_of, inner[1], name)
    if origin in (Union, UnionType):
        (one,) = (part for part in inner if part is not NoneType)
        read = reader_of(one, name)
        return lambda value: None if value is None else read(value)
    if origin is dict:
        read = reader_of(inner[1], name)
        return lambda value: {
            key: read(each) for key, each in _checked(dict, name, value).items()
        }
    read = reader_of(inner[0], name)
    return lambda value: tuple(map(read, _checked(list, name, value)))


def _checked(kind: type, name: str, value: Any) -> Any:
    if type(value) is not kind:
        raise _wrong(name, value)
    return value


def _one_of(known: Sequence[str], name: str, value: Any) -> str:
    if value in known:
        return value
    raise InputError(f"{name} is one of {', '.join(known)}. Received: {value!r}.")


def _whole(name: str, value: Any) -> int:
    if type(value) is int and 0 <= value < _MOST_WHOLE:
        return value
    raise _wrong(name, value)


def _number(name: str, value: Any) -> float:
    # Compared, a number too long for a float is no error, and NaN is refused.
    if type(value) in (int, float) and -_LARGEST <= value <= _LARGEST:
        return value
    raise _wrong(name, value)


_LARGEST = sys.float_info.max
_MOST_WHOLE = 1 << 53
"""Pages count in floats, and add up several; memory of 8 PiB is not met."""

_SCALARS: dict[Any, Callable[[str, Any], Any]] = {
    bool: partial(_checked, bool),
    str: partial(_checked, str),
    int: _whole,
    float: _number,
}


def _wrong(name: str, value: Any) -> InputError:
    return InputError(
        f"{name} cannot be that: a whole number is at least 0 and below 2^53, another "
        "one finite, a text a text, and None stands only where something may be "
        f"missing. Received: {type(value).__name__} {str(value)[:50]}."
    )
