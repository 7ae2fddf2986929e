"""Frozen configs with checked fields, and their conversion to plain data.

This module does not import Keras, so that the command line can read options fast.
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
    """A frozen config that validates its fields and converts to plain data.

    Attributes:
        tag: Key of the name in plain data.
        name: Name of the class in plain data.
        hints: Hints for argument names of other libraries.
    """

    tag: ClassVar[str]
    name: ClassVar[str]
    hints: ClassVar[Mapping[str, str]] = {}

    if not TYPE_CHECKING:

        def __new__(cls, *_: object, **arguments: object) -> Any:
            """Raises `ConfigError` with the valid names for an unknown argument."""
            parameters = list(inspect.signature(cls.__init__).parameters)[1:]
            for name in arguments.keys() - set(parameters):
                hint = cls.hints.get(name) or did_you_mean(name, parameters)
                raise ConfigError(
                    f"{cls.__name__} has no argument {name!r}.{hint} Expected: "
                    f"{', '.join(parameters)}. Received: {name}={arguments[name]!r}."
                )
            return super().__new__(cls)

    def to_json(self) -> dict[str, Any]:
        """Returns the config as plain data, which `from_tagged` reads.

        Returns:
            Dict with the name under `tag`, and each argument by its name.
        """
        values = {name: plain(getattr(self, name)) for name in rules_of(type(self))}
        return {self.tag: self.name, **values}

    def _set(self, name: str, value: Any) -> None:
        object.__setattr__(self, name, value)


def plain(value: Any) -> Any:
    """Returns the value of a field as plain data."""
    if isinstance(value, Config):
        return value.to_json()
    if is_dataclass(value) and not isinstance(value, type):
        return {
            field.name: plain(getattr(value, field.name)) for field in fields(value)
        }
    if isinstance(value, tuple):
        return [plain(each) for each in value]
    if isinstance(value, Integral) and not isinstance(value, bool):
        return int(value)  # JSON cannot store NumPy integers
    return str(value) if isinstance(value, Path) else value


def from_tagged(known: Mapping[str, type], config: Any, tag: str) -> Any:
    """Creates an object from plain data that contains the name of its class.

    Args:
        known: Classes by name.
        config: Dict with the name under `tag`, and the arguments of the class.
        tag: Key of the name.

    Raises:
        ConfigError: If the name, an argument or a value is invalid.

    Example:
        >>> from_tagged({"one of": OneOf}, {"rule": "one of", "allowed": (1,)}, "rule")
        OneOf(allowed=(1,))
    """
    arguments = dict(config)
    name = OneOf(tuple(known)).check("a config", tag, arguments.pop(tag, None))
    return built(known[name], arguments, repr(name))


def built(cls: type, arguments: Mapping[str, Any], what: str) -> Any:
    """Creates an object of a dataclass from plain data.

    `what` names the object in messages, such as `"'prune'"`.
    """
    names = [field.name for field in fields(cls) if field.init]
    if unknown := sorted(set(arguments) - set(names)):
        raise ConfigError(
            f"Unknown argument {unknown[0]!r} of {what}."
            f"{did_you_mean(unknown[0], names)} Expected: {', '.join(names)}."
        )
    try:
        return cls(**arguments)
    except ConfigError:
        raise
    except (TypeError, ValueError, OverflowError) as error:
        why = str(error).rstrip(".")
        raise ConfigError(f"Invalid arguments for {what}: {why}.") from error


def nested(owner: str, field: str, cls: type, value: Any) -> Any:
    """Returns a nested config, created from a dict if necessary.

    `None` is kept. `owner` and `field` name the config in messages.

    Raises:
        ConfigError: If `value` has another type.
    """
    if value is None or isinstance(value, cls):
        return value
    if isinstance(value, Mapping):
        return built(cls, value, f"the {field} of {owner}")
    valid = f"a km.{cls.__name__}, or a dict of its fields"
    raise invalid(owner, field, value, valid)
