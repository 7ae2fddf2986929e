"""Frozen choices: fields checked by their annotations, and their way to plain data.

It imports no Keras, so that the command line can read its options from configs.
"""

import inspect
from collections.abc import Mapping
from dataclasses import dataclass, fields, is_dataclass
from numbers import Integral
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from kerasmem.checks import Checked, OneOf, invalid, rules_of
from kerasmem.errors import ConfigError, did_you_mean


@dataclass(frozen=True)
class Config(Checked):
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
            parameters = list(inspect.signature(cls.__init__).parameters)[1:]
            for name in arguments.keys() - set(parameters):
                hint = cls.hints.get(name) or did_you_mean(name, parameters)
                raise ConfigError(
                    f"{cls.__name__} has no argument {name!r}.{hint} Expected: "
                    f"{', '.join(parameters)}. Received: {name}={arguments[name]!r}."
                )
            return super().__new__(cls)

    def to_json(self) -> dict[str, Any]:
        """Serialize the config to plain data; `from_tagged` reads it back.

        Returns:
            The name under `tag`, and each argument by its name.
        """
        values = {name: plain(getattr(self, name)) for name in rules_of(type(self))}
        return {self.tag: self.name, **values}

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
    if isinstance(value, Integral) and not isinstance(value, bool):
        return int(value)  # a number of NumPy has no JSON
    return str(value) if isinstance(value, Path) else value


def from_tagged(known: Mapping[str, type], config: Any, tag: str) -> Any:
    """Return the object that plain data describes, whose class one entry names.

    Args:
        known: the classes by name.
        config: the name under `tag`, and the arguments of the class by name.
        tag: the key of the name.

    Raises:
        ConfigError: if the name or an argument is unknown, or a value cannot be used.

    Example:
        >>> from_tagged({"one of": OneOf}, {"rule": "one of", "allowed": (1,)}, "rule")
        OneOf(allowed=(1,))
    """
    arguments = dict(config)
    name = OneOf(tuple(known)).check("a config", tag, arguments.pop(tag, None))
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
    names = [field.name for field in fields(cls) if field.init]
    if unknown := sorted(set(arguments) - set(names)):
        raise ConfigError(
            f"{what} takes no {unknown[0]!r}.{did_you_mean(unknown[0], names)} It "
            f"takes {', '.join(names)}."
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
    valid = f"a km.{cls.__name__}, or a dict of its fields"
    raise invalid(owner, field, value, valid)
