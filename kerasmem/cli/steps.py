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
from collections.abc import Mapping
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
    own_fields = {field.name: field for field in fields(technique) if field.init}
    first = next(iter(own_fields))
    flags = {name: f"{flag}-{name.replace('_', '-')}" for name in own_fields}
    flags |= {first: flag, "data": "--data"}
    by_field: dict[str, Option] = {}
    for name, (kind, rule, _) in rules_of(technique).items():
        settings = _settings(kind, rule)
        if settings is None:
            continue
        words, default = _first_sentences(descriptions[name], flags)
        names = rule.allowed if isinstance(rule, OneOf) and kind is not bool else ()
        if not all(choice in words for choice in names):
            words = f"{words}. One of {', '.join(names)}"
        if rule == PATTERNS:
            words = f"{words.replace('expressions', 'expression', 1)}. Repeatable"
        if isinstance(own_fields[name].default, str | int | float):
            default = own_fields[name].default
        if default != "" and name != first:
            words = f"{words} (default: {default})"
        settings["help"] = f"{words}.".replace("%", "%%")
        by_field[name] = option(flags[name], **settings)
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


def _first_sentences(text: str, flags: Mapping[str, str]) -> tuple[str, str]:
    """Return two sentences and the default, with flags in place of field names."""

    def shell(code: re.Match[str]) -> str:
        name, _, value = code[1].partition("=")
        text = f"{flags[name]} {value}".rstrip() if name in flags else code[1]
        return text if " " in code[1] else text.replace('"', "")

    text = re.sub(r"`([^`]*)`", shell, text)
    sentences = [each.removesuffix(".") for each in re.split(r"(?<=\.) ", text)]
    start = "Defaults to "
    defaults = [
        each.removeprefix(start) for each in sentences if each.startswith(start)
    ]
    words = [each for each in sentences if not each.startswith(start)]
    return ". ".join(words[:2]), "".join(defaults)


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
        help="Named steps: size (80 %% of the weights pruned, int8, entropy coding); "
        "latency (channels pruned to 50 %% of the multiplications); balanced (channels "
        "pruned to 70 %% of the multiplications, int8); lossless (entropy "
        "coding). All but lossless need --data or --fine-tune-epochs 0. Cannot be "
        "combined with other steps.",
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
        "file_bytes, weight_bytes, activation_bytes per sample, flops per sample or "
        "latency_ms per batch. Needs labels in --data. Repeatable.",
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
        help="isolated: each family of trials runs in its own process, one after "
        "another, to free all its memory (default: all trials in this process).",
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
        first, clash = flags[0], "cannot be combined with other steps"
        if options.targets:
            first, clash = (
                flags[-1],
                "starts a search and cannot be combined with steps",
            )
        others = [*by_flag, *(flag for flag in flags if flag != first)]
        raise ConfigError(
            f"{first} {clash}. Received: {first} with {', '.join(others)}."
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
