"""What `kerasmem compress` is to do: steps, a recipe, a preset or a search."""

import argparse
from argparse import Namespace
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from kerasmem.cli.options import seconds
from kerasmem.cli.techniques import add_techniques, techniques_of
from kerasmem.errors import ConfigError


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


def add_steps(parser: Any) -> None:
    """Add the options that say what is to be done."""
    add_techniques(parser)
    parser.add_argument(
        "--recipe",
        type=Path,
        metavar="FILE",
        help="steps from a JSON or YAML file, in place of the above",
    )
    parser.add_argument(
        "--preset",
        metavar="NAME",
        help="steps of this name, in place of the above: size, latency, balanced or "
        "lossless",
    )
    _add_search(parser)


def _add_search(parser: Any) -> None:
    parser.add_argument(
        "--target",
        dest="targets",
        type=_limit,
        action="append",
        default=[],
        metavar="COST=LIMIT",
        help="search for steps that meet it, such as file_bytes=200KiB or flops=1e6; "
        "weight_bytes, activation_bytes, latency_ms; repeatable",
    )
    parser.add_argument(
        "--time-budget",
        type=seconds,
        metavar="10m",
        help="end the search after so many seconds, minutes (m) or hours (h)",
    )
    parser.add_argument(
        "--parallel",
        choices=("ray",),
        help="try several things at a time, on Ray (pip install kerasmem[ray])",
    )


def _limit(text: str) -> tuple[str, float | str]:
    name, equals, value = text.partition("=")
    if not equals or not value:
        raise argparse.ArgumentTypeError(
            f"expected COST=LIMIT, such as file_bytes=200KiB; received {text!r}"
        )
    try:
        return name, float(value)
    except ValueError:
        return name, value


def job_of(options: Namespace) -> Job:
    """Return what the options say.

    Raises:
        ConfigError: if they say nothing, or two things at once.
    """
    from kerasmem.compression.recipe import as_preset, read_recipe

    techniques = techniques_of(options)
    given = {f"--{step.name.replace('_', '-')}": step for step in techniques}
    ways = {"--recipe": options.recipe, "--preset": options.preset}
    ways |= {"--target": options.targets or None}
    named = [flag for flag, way in ways.items() if way is not None]
    if len(named) > 1 or (named and given):
        raise ConfigError(
            f"{named[0]} says all that is to be done. Received: {named[0]} beside "
            f"{', '.join([*given, *named[1:]])}."
        )
    searches = options.targets or (options.max_drop is not None and not given)
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
    if not named and not given:
        raise ConfigError(
            "There is nothing to do. Next: add --prune, --prune-channels, --quantize, "
            "--recipe or --preset; or --target or --max-drop for a search."
        )
    if options.preset is not None:
        epochs = as_preset(options.preset).epochs
        wanted = options.fine_tune_epochs
        return Job(options.preset, None, bool(epochs if wanted is None else wanted))
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
