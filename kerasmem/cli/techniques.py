"""Options of the command line that are the fields of techniques' configs.

The first field of a config is the option of the technique's name, `--prune 0.8`; every
other field is one behind that name, `--prune-scope`. Types, names and defaults are the
field's, and the help is what the docstring says of it.
"""

import argparse
import inspect
import re
from argparse import Namespace
from collections.abc import Iterator
from dataclasses import MISSING, dataclass, fields
from typing import Any, get_args

from kerasmem.cli.options import Parser, at_least
from kerasmem.compression.channels.config import PruneChannels
from kerasmem.compression.fields import PATTERNS, Whole, rules_of
from kerasmem.compression.prune.config import Prune
from kerasmem.compression.quantize.config import Quantize
from kerasmem.compression.technique import Technique
from kerasmem.errors import ConfigError

TECHNIQUES: tuple[type[Technique], ...] = (PruneChannels, Prune, Quantize)
"""Those that have options, in the order in which they are applied."""


@dataclass(frozen=True)
class FieldOption:
    """One option and its field.

    Args:
        flag: such as `"--prune-scope"`.
        field: name of the field.
        settings: arguments for `add_argument`.
    """

    flag: str
    field: str
    settings: dict[str, Any]

    @property
    def dest(self) -> str:
        """The name of its value among the parsed options."""
        return self.flag.removeprefix("--").replace("-", "_")


def add_techniques(parser: Parser) -> None:
    """Add the options of all techniques that have some."""
    for technique in TECHNIQUES:
        for option in options_of(technique):
            parser.add_argument(option.flag, **option.settings)


def techniques_of(options: Namespace) -> list[Technique]:
    """Return the techniques that the options ask for, in order.

    Raises:
        ConfigError: if an option goes with a technique that is not asked for, or a
            value cannot be used.
    """
    steps: list[Technique] = []
    for technique in TECHNIQUES:
        first, *others = options_of(technique)
        values = {o.field: getattr(options, o.dest) for o in (first, *others)}
        given = {name: value for name, value in values.items() if value is not None}
        if first.field in given:
            steps.append(technique(**given))
        elif given:
            flag = next(o.flag for o in others if o.field in given)
            raise ConfigError(
                f"{flag} says how {first.flag} is done. Next: add {first.flag}."
            )
    return steps


def options_of(technique: type[Technique]) -> Iterator[FieldOption]:
    """Return the options of a technique, that of its first field first.

    Fields that a command line cannot hold, such as schedules and ratios, have none:
    they stand in a recipe.
    """
    described = _described(technique)
    flag = f"--{technique.name.replace('_', '-')}"
    rules = rules_of(technique)
    for number, field in enumerate(each for each in fields(technique) if each.init):
        kind, rule, _ = rules[field.name]
        settings = _settings(kind, rule)
        if settings is None:
            continue
        default = field.default
        is_plain = default is not MISSING and isinstance(default, str | int | float)
        shown = f" ({default})" if is_plain and number else ""
        words = _first_sentence(described[field.name])
        if isinstance(rule, tuple) and not all(name in words for name in rule):
            words = f"{words}; one of {', '.join(rule)}"
        settings["help"] = f"{words}{shown}".replace("%", "%%")
        name = flag if not number else f"{flag}-{field.name.replace('_', '-')}"
        yield FieldOption(name, field.name, settings)


def _settings(kind: Any, rule: Any) -> dict[str, Any] | None:
    """Return how a type of field is read from the command line, None if it is not."""
    if rule == PATTERNS:
        return {"action": "append", "metavar": "REGEX"}
    if kind is bool:
        return {"action": argparse.BooleanOptionalAction, "default": None}
    if isinstance(rule, Whole):
        return {"type": at_least(rule.least), "metavar": "N"}
    if kind is float:
        return {"type": float, "metavar": "X"}
    return {"metavar": "NAME"} if kind is str or str in get_args(kind) else None


def _described(technique: type[Technique]) -> dict[str, str]:
    """Return what the docstring of a config says of each field."""
    doc = inspect.getdoc(technique) or ""
    (args,) = re.findall(r"^Args:\n(.*?)(?:^\S|\Z)", doc, re.DOTALL | re.MULTILINE)
    found = re.findall(
        r"^    (\w+): (.*?)(?=^    \w|\Z)", args, re.DOTALL | re.MULTILINE
    )
    return {name: " ".join(text.split()) for name, text in found}


def _first_sentence(text: str) -> str:
    text = text.replace("`", "").replace('"', "")
    return re.split(r"\.(?= |$)", text)[0]
