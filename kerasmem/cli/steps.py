"""The task of `kerasmem compress`: steps, a recipe, a preset or a search.

The options of steps are the fields of the techniques' configs. The first field is the
option with the name of the technique, such as `--prune 0.8`. Other fields have that
name as a prefix, such as `--prune-scope`. Types, names and defaults are taken from the
field, and the help text from the docstring.
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
"""Techniques with options, in the order of application."""


def options_of(technique: type[Technique]) -> dict[str, Option]:
    """Return the options of a technique by field, in order.

    Fields that need more than one value, such as schedules, are only available in
    recipes.
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
        words = _first_sentences(descriptions[field.name])
        names = rule.allowed if isinstance(rule, OneOf) and kind is not bool else ()
        if not all(name in words for name in names):
            words = f"{words}. One of {', '.join(names)}"
        is_plain = isinstance(field.default, str | int | float)
        if is_plain and number and "(default: " not in words:
            words = f"{words} (default: {field.default})"
        settings["help"] = f"{words}.".replace("%", "%%")
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


def _first_sentences(text: str) -> str:
    text = text.replace("`", "").replace('"', "")
    sentences = re.split(r"(?<=\.) ", text)
    sentences = [each for each in sentences if not each.startswith("Defaults to")]
    return " ".join(sentences[:2]).removesuffix(".")


def _limit(text: str) -> tuple[str, float | str]:
    name, equals, value = text.partition("=")
    if not equals or not value:
        raise ValueError
    try:
        return name, float(value)
    except ValueError:
        return name, value


_BY_TECHNIQUE = [[*options_of(technique).values()] for technique in TECHNIQUES]

STEPS: tuple[Option | str, ...] = (
    *(first for first, *_ in _BY_TECHNIQUE),
    option(
        "--recipe",
        type=Path,
        metavar="FILE",
        help="JSON or YAML file with a list of steps, such as "
        "[{technique: prune, sparsity: 0.8}]. Cannot be combined with other steps.",
    ),
    option(
        "--preset",
        metavar="NAME",
        help="Named steps: size, latency, balanced or lossless. All but lossless need "
        "--data or --fine-tune-epochs 0. Cannot be combined with other steps.",
    ),
    *(
        each
        for first, *others in _BY_TECHNIQUE
        for each in (f"options of {first.flags[0]}", *others)
    ),
    "search",
    option(
        "--target",
        dest="targets",
        type=checked(_limit, "COST=LIMIT, such as file_bytes=200KiB"),
        action="append",
        default=[],
        metavar="COST=LIMIT",
        help="Search for steps within this limit, such as file_bytes=200KiB. COST is "
        "file_bytes, weight_bytes, activation_bytes, flops or latency_ms. Needs "
        "labels in --data. Repeatable.",
    ),
    option(
        "--time-budget",
        type=seconds,
        metavar="10m",
        help="Maximum time of the search in seconds, minutes (10m) or hours (2h).",
    ),
    option(
        "--parallel",
        choices=("isolated",),
        help="Run each family of trials in a separate process, one by one.",
    ),
)
"""Options that select the steps."""


def techniques_of(options: Namespace) -> list[Technique]:
    """Return the selected techniques in order.

    Raises:
        ConfigError: If an option belongs to a technique that is not selected, or a
            value is invalid.
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
                f"{flag} is an option of {first_flag}. Next: add {first_flag}."
            )
    return steps


@dataclass(frozen=True)
class Job:
    """Task of the command.

    `steps` is None for a search. `target` is None for the smallest file.
    """

    steps: Any
    target: dict[str, Any] | None
    trains: bool


def job_of(options: Namespace) -> Job:
    """Return the task that the options describe.

    Raises:
        ConfigError: If the options describe no task, or more than one.
    """
    from kerasmem.compression.recipe import as_preset, read_recipe

    techniques = techniques_of(options)
    by_flag = {f"--{step.name.replace('_', '-')}": step for step in techniques}
    ways = {"--recipe": options.recipe, "--preset": options.preset}
    ways |= {"--target": options.targets or None}
    flags = [flag for flag, way in ways.items() if way is not None]
    if len(flags) > 1 or (flags and by_flag):
        raise ConfigError(
            f"{flags[0]} cannot be combined with other steps. Received: {flags[0]} "
            f"with {', '.join([*by_flag, *flags[1:]])}."
        )
    searches = options.targets or (options.max_drop is not None and not by_flag)
    if searches and not options.recipe and not options.preset:
        _check_targets(options.targets)
        return Job(None, dict(options.targets) or None, trains=True)
    of_search = {"--time-budget": options.time_budget, "--parallel": options.parallel}
    for flag, value in of_search.items():
        if value is not None:
            raise ConfigError(
                f"{flag} is only valid for a search. Next: pass --target or --max-drop "
                "without steps."
            )
    if not flags and not by_flag:
        raise ConfigError(
            "No step is selected. Next: add --prune, --prune-channels, --quantize, "
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
        raise ConfigError(f"--target limits {twice[0]} twice. Next: pass one limit.")
    if targets:
        Target.of(dict(targets))
