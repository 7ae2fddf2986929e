"""What `kerasmem compress` is to do: steps, a recipe, a preset or a search."""

import argparse
from argparse import Namespace
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from kerasmem.cli.options import at_least, seconds
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
    parser.add_argument(
        "--prune", type=float, metavar="0.8", help="share of weights to set to zero"
    )
    _add_pruning(parser)
    parser.add_argument(
        "--prune-channels",
        type=float,
        metavar="0.5",
        help="share of channels to remove, before all else",
    )
    _add_channels(parser)
    parser.add_argument(
        "--quantize",
        metavar="SCHEME",
        help="of kernels: int8, int8-dynamic, int4, float16 or bfloat16; int8-static, "
        "which takes --data, of activations too",
    )
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


def _add_pruning(parser: Any) -> None:
    parser.add_argument(
        "--prune-scope",
        choices=("layer", "global", "erdos_renyi", "erdos_renyi_kernel"),
        default="layer",
        help="what the share is of (layer)",
    )
    parser.add_argument(
        "--prune-criterion", metavar="NAME", help="what matters (magnitude/rms)"
    )
    parser.add_argument(
        "--prune-pattern", metavar="2:4", help="what goes together, such as 4x4"
    )
    parser.add_argument(
        "--prune-include",
        action="append",
        default=[],
        metavar="REGEX",
        help="prune this weight too, such as one of the output layer; repeatable",
    )
    parser.add_argument(
        "--prune-exclude",
        action="append",
        default=[],
        metavar="REGEX",
        help="leave this weight alone; repeatable",
    )


def _add_channels(parser: Any) -> None:
    parser.add_argument(
        "--prune-channels-of",
        metavar="NAME",
        help="what that share is of: channels, parameters, multiplications, memory, "
        "latency (channels)",
    )
    parser.add_argument(
        "--prune-channels-criterion",
        metavar="NAME",
        help="what matters, such as taylor with --data (l2)",
    )
    parser.add_argument(
        "--prune-channels-scope",
        metavar="NAME",
        help="what is ranked together: layer, global, isomorphic (layer)",
    )
    parser.add_argument(
        "--prune-channels-rounds",
        type=at_least(1),
        metavar="N",
        help="in so many rounds, with --fine-tune-epochs after each (1)",
    )


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
    from kerasmem.compression.presets import as_preset
    from kerasmem.compression.recipe import read_recipe
    from kerasmem.compression.technique import TrainingStep

    techniques = _techniques(options)
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
    learns = any(isinstance(step, TrainingStep) for step in steps)
    return Job(steps, None, learns or bool(options.fine_tune_epochs))


def _check_targets(targets: list[tuple[str, Any]]) -> None:
    from kerasmem.compression.search import Target

    names = [name for name, _ in targets]
    twice = [name for name in names if names.count(name) > 1]
    if twice:
        raise ConfigError(f"--target limits {twice[0]} twice. Next: give one limit.")
    if targets:
        Target.of(dict(targets))


def _techniques(options: Namespace) -> list[Any]:
    from kerasmem.compression.channels import PruneChannels
    from kerasmem.compression.prune import Prune
    from kerasmem.compression.quantize import Quantize

    steps: list[Any] = []
    channels, pruning = _channels(options), _pruning(options)
    if options.prune_channels is not None:
        steps.append(PruneChannels(options.prune_channels, **channels))
    if options.prune is not None:
        steps.append(Prune(options.prune, **pruning))
    if options.quantize is not None:
        steps.append(Quantize(options.quantize))
    return steps


def _pruning(options: Namespace) -> dict[str, Any]:
    named = {
        "criterion": options.prune_criterion,
        "pattern": options.prune_pattern,
    }
    given = [name for name, value in named.items() if value is not None]
    given += [n for n in ("include", "exclude") if getattr(options, f"prune_{n}")]
    if given and options.prune is None:
        raise ConfigError(f"--prune-{given[0]} says how weights go. Next: add --prune.")
    return {
        "scope": options.prune_scope,
        "include": options.prune_include,
        "exclude": options.prune_exclude,
        **{name: value for name, value in named.items() if value is not None},
    }


def _channels(options: Namespace) -> dict[str, Any]:
    fields = ("of", "criterion", "scope", "rounds")
    named = {name: getattr(options, f"prune_channels_{name}") for name in fields}
    given = {name: value for name, value in named.items() if value is not None}
    if given and options.prune_channels is None:
        flag = f"--prune-channels-{next(iter(given))}"
        raise ConfigError(f"{flag} says how channels go. Next: add --prune-channels.")
    return given
