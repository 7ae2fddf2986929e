"""What `kerasmem compress` is to do: steps, a recipe, a preset or a search.

Options of steps are the fields of techniques' configs. The first field of a config is
the option of the technique's name, `--prune 0.8`; every other field is one behind that
name, `--prune-scope`. Types, names and defaults are the field's, and the help is what
the docstring says of it.
"""

import argparse
import inspect
import re
from argparse import Namespace
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, get_args

from kerasmem.checks import PATTERNS, OneOf, Whole, rules_of
from kerasmem.cli.command import Option, at_least, checked, option, seconds
from kerasmem.compression.channels import PruneChannels
from kerasmem.compression.prune import Prune
from kerasmem.compression.quantize.config import Quantize
from kerasmem.compression.technique import Technique
from kerasmem.errors import ConfigError

TECHNIQUES: tuple[type[Technique], ...] = (PruneChannels, Prune, Quantize)
"""Those that have options, in the order in which they are applied."""


def options_of(technique: type[Technique]) -> dict[str, Option]:
    """Return the options of a technique by its fields, in their order.

    Fields that a command line cannot hold, such as schedules and ratios, have none:
    they stand in a recipe.
    """
    descriptions = _described(technique)
    flag = f"--{technique.name.replace('_', '-')}"
    rules = rules_of(technique)
    by_field: dict[str, Option] = {}
    for number, field in enumerate(each for each in fields(technique) if each.init):
        kind, rule, _ = rules[field.name]
        settings = _settings(kind, rule)
        if settings is None:
            continue
        words = _first_sentence(descriptions[field.name])
        names = rule.allowed if isinstance(rule, OneOf) and kind is not bool else ()
        if not all(name in words for name in names):
            words = f"{words}; one of {', '.join(names)}"
        is_plain = isinstance(field.default, str | int | float)
        if is_plain and number and "(default: " not in words:
            words = f"{words} ({field.default})"
        settings["help"] = words.replace("%", "%%")
        name = flag if not number else f"{flag}-{field.name.replace('_', '-')}"
        by_field[field.name] = option(name, **settings)
    return by_field


def _settings(kind: Any, rule: Any) -> dict[str, Any] | None:
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
    doc = inspect.getdoc(technique) or ""
    (args,) = re.findall(r"^Args:\n(.*?)(?:^\S|\Z)", doc, re.DOTALL | re.MULTILINE)
    entries = re.findall(
        r"^    (\w+): (.*?)(?=^    \w|\Z)", args, re.DOTALL | re.MULTILINE
    )
    return {name: " ".join(text.split()) for name, text in entries}


def _first_sentence(text: str) -> str:
    text = text.replace("`", "").replace('"', "")
    return re.split(r"\.(?= |$)", text)[0]


def _limit(text: str) -> tuple[str, float | str]:
    name, equals, value = text.partition("=")
    if not equals or not value:
        raise ValueError
    try:
        return name, float(value)
    except ValueError:
        return name, value


STEPS: tuple[Option, ...] = (
    *(each for technique in TECHNIQUES for each in options_of(technique).values()),
    option(
        "--recipe",
        type=Path,
        metavar="FILE",
        help="steps from a JSON or YAML file, in place of the above",
    ),
    option(
        "--preset",
        metavar="NAME",
        help="steps of this name, in place of the above: size, latency, balanced or "
        "lossless",
    ),
    option(
        "--target",
        dest="targets",
        type=checked(_limit, "COST=LIMIT, such as file_bytes=200KiB"),
        action="append",
        default=[],
        metavar="COST=LIMIT",
        help="search for steps that meet it, such as file_bytes=200KiB or flops=1e6; "
        "weight_bytes, activation_bytes, latency_ms; repeatable",
    ),
    option(
        "--time-budget",
        type=seconds,
        metavar="10m",
        help="end the search after so many seconds, minutes (m) or hours (h)",
    ),
    option(
        "--parallel",
        choices=("ray", "isolated"),
        help="try several things at a time, on Ray (pip install kerasmem[ray]), or one "
        "after the other in processes of their own",
    ),
)
"""The options that say what is to be done."""


def techniques_of(options: Namespace) -> list[Technique]:
    """Return the techniques that the options ask for, in order.

    Raises:
        ConfigError: if an option goes with a technique that is not asked for, or a
            value cannot be used.
    """
    steps: list[Technique] = []
    for technique in TECHNIQUES:
        own_options = options_of(technique)
        values = {
            name: getattr(options, each.dest) for name, each in own_options.items()
        }
        chosen_values = {
            name: value for name, value in values.items() if value is not None
        }
        first = next(iter(own_options))
        if first in chosen_values:
            steps.append(technique(**chosen_values))
        elif chosen_values:
            (flag,), (first_flag,) = (
                own_options[next(iter(chosen_values))].flags,
                own_options[first].flags,
            )
            raise ConfigError(
                f"{flag} says how {first_flag} is done. Next: add {first_flag}."
            )
    return steps


@dataclass(frozen=True)
class Job:
    """What is done to the model.

    Args:
        steps: techniques, or the name of a preset; None for a search.
        target: of the search; None if it is for the smallest file.
        trains: whether samples are trained on.
    """

    steps: Any
    target: dict[str, Any] | None
    trains: bool


def job_of(options: Namespace) -> Job:
    """Return what the options say.

    Raises:
        ConfigError: if they say nothing, or two things at once.
    """
    from kerasmem.compression.recipe import as_preset, read_recipe

    techniques = techniques_of(options)
    by_flag = {f"--{step.name.replace('_', '-')}": step for step in techniques}
    ways = {"--recipe": options.recipe, "--preset": options.preset}
    ways |= {"--target": options.targets or None}
    flags = [flag for flag, way in ways.items() if way is not None]
    if len(flags) > 1 or (flags and by_flag):
        raise ConfigError(
            f"{flags[0]} says all that is to be done. Received: {flags[0]} beside "
            f"{', '.join([*by_flag, *flags[1:]])}."
        )
    searches = options.targets or (options.max_drop is not None and not by_flag)
    if searches and not options.recipe and not options.preset:
        _check_targets(options.targets)
        return Job(None, dict(options.targets) or None, trains=True)
    of_search = {"--time-budget": options.time_budget, "--parallel": options.parallel}
    for flag, value in of_search.items():
        if value is not None:
            raise ConfigError(
                f"{flag} is of a search. Next: give --target or --max-drop, and no "
                "steps."
            )
    if not flags and not by_flag:
        raise ConfigError(
            "There is nothing to do. Next: add --prune, --prune-channels, --quantize, "
            "--recipe or --preset; or --target or --max-drop for a search."
        )
    if options.preset is not None:
        epochs = as_preset(options.preset).epochs
        epochs_option = options.fine_tune_epochs
        return Job(
            options.preset,
            None,
            bool(epochs if epochs_option is None else epochs_option),
        )
    steps = list(read_recipe(options.recipe)) if options.recipe else techniques
    learns = any(step.trains for step in steps)
    return Job(steps, None, learns or bool(options.fine_tune_epochs))


def _check_targets(targets: list[tuple[str, Any]]) -> None:
    from kerasmem.compression.search import Target

    names = [name for name, _ in targets]
    twice = [name for name in names if names.count(name) > 1]
    if twice:
        raise ConfigError(f"--target limits {twice[0]} twice. Next: give one limit.")
    if targets:
        Target.of(dict(targets))
