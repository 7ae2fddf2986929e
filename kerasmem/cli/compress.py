"""`kerasmem compress`: a saved model made smaller."""

import shlex
import sys
from argparse import Namespace
from dataclasses import asdict
from pathlib import Path
from typing import Any

from kerasmem.cli.options import (
    add_batch_size,
    add_command,
    add_data,
    add_imports,
    add_model,
    add_output,
    at_least,
    check_output,
    not_negative,
)
from kerasmem.cli.outcome import Outcome, progress_console, say
from kerasmem.errors import ConfigError


def add_to(commands: Any) -> None:
    """Add the command to the parser."""
    parser = add_command(
        commands,
        "compress",
        run,
        "Make a saved model smaller, and prove what it costs.",
    )
    add_model(parser)
    add_output(parser)
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
    add_data(parser, required=False)
    parser.add_argument(
        "--fine-tune-epochs", type=at_least(0), default=0, metavar="N", help="on DATA"
    )
    parser.add_argument(
        "--max-drop",
        type=not_negative,
        metavar="0.005",
        help="write nothing if the metric falls by more",
    )
    add_batch_size(parser, default=32)
    parser.add_argument("--seed", type=at_least(0), metavar="N")
    parser.add_argument(
        "--checkpoint-dir",
        type=Path,
        metavar="DIR",
        help="keep every step there: the same command goes on after it was killed",
    )
    parser.add_argument(
        "--coding",
        choices=("deflate", "entropy"),
        default="deflate",
        help="of the file; entropy is smaller, and opens after `import kerasmem`",
    )
    parser.add_argument(
        "--report", type=Path, metavar="FILE.html", help="write a page of it too"
    )
    add_imports(parser)


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


def run(options: Namespace) -> Outcome:
    """Compress the model, write it, and return it before and after."""
    from kerasmem.compression.compress import compress
    from kerasmem.report.progress import FitProgress

    steps = _steps(options)
    _check(options)
    model, train, test = _load(options, steps)
    say(f"compressing {options.model}, then measuring both models")
    with FitProgress("fine-tuning", progress_console()) as progress:
        result = compress(
            model,
            steps,
            data=train,
            validation_data=test,
            fine_tune_epochs=options.fine_tune_epochs,
            max_drop=options.max_drop,
            seed=options.seed,
            batch_size=options.batch_size,
            callbacks=[progress],
            coding=options.coding,
            checkpoint_dir=options.checkpoint_dir,
        )
    # The page first: a command that fails leaves no model behind. If the model cannot
    # be written then, the page stays; what it tells was measured all the same.
    if options.report:
        _write_page(options, result)
    result.save(options.output)
    return _outcome(options, result)


def _steps(options: Namespace) -> list[Any]:
    from kerasmem.compression.channels import PruneChannels
    from kerasmem.compression.prune import Prune
    from kerasmem.compression.quantize import Quantize
    from kerasmem.compression.recipe import read_recipe

    steps: list[Any] = []
    channels, pruning = _channels(options), _pruning(options)
    if options.prune_channels is not None:
        steps.append(PruneChannels(options.prune_channels, **channels))
    if options.prune is not None:
        steps.append(Prune(options.prune, **pruning))
    if options.quantize is not None:
        steps.append(Quantize(options.quantize))
    if options.recipe is not None:
        if steps:
            raise ConfigError(
                "A recipe lists all steps. Received: --recipe beside "
                f"{', '.join('--' + step.name.replace('_', '-') for step in steps)}."
            )
        return list(read_recipe(options.recipe))
    if not steps:
        raise ConfigError(
            "There is nothing to do. Next: add --prune, --prune-channels, --quantize "
            "or --recipe."
        )
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


def _check(options: Namespace) -> None:
    check_output(options.output, ".keras")
    if options.report:
        check_output(options.report, ".html")
    wants_data = {
        "--fine-tune-epochs": options.fine_tune_epochs,
        "--max-drop": options.max_drop is not None,
        "--loss": options.loss,
        "--metric": options.metrics,
    }
    for name, given in wants_data.items():
        if given and not options.data:
            raise ConfigError(f"{name} takes data. Next: add --data.")


def _load(options: Namespace, steps: list[Any]) -> tuple[Any, Any, Any]:
    """Return the model, the data to train on and the data to judge by, checked."""
    from kerasmem.cli.judging import (
        check_judging,
        compile_for,
        has_labels,
        split_to_judge,
    )
    from kerasmem.compression.technique import TrainingStep
    from kerasmem.files import load_model
    from kerasmem.files.data import check_data, load_data

    model = load_model(options.model)
    if not options.data:
        return model, None, None
    loaded = load_data(options.data)
    train, test = loaded.train, loaded.test
    compile_for(model, options.loss, options.metrics)
    trains = options.fine_tune_epochs or any(
        isinstance(step, TrainingStep) for step in steps
    )
    judging = [part for part in (test, train) if part is not None]
    asked = options.max_drop is not None or options.loss or options.metrics
    if not (trains or asked or any(map(has_labels, judging))):
        say("The data has no labels: no metric is measured.")
        check_data(model, train)
        return model, train, None
    if trains or test is None:
        check_judging(model, train)
    if test is None and trains:
        train, test = split_to_judge(train)
    test = train if test is None else test
    check_judging(model, test)
    return model, train, test


def _write_page(options: Namespace, result: Any) -> None:
    from kerasmem.report.comparison import before_and_after
    from kerasmem.report.page import Page, write_page

    page = Page(
        title=f"{Path(options.model).name}, compressed",
        models=before_and_after(result.report),
        changes=result.changes,
        origin={"command": shlex.join(sys.argv), "seed": options.seed},
    )
    write_page(options.report, page)


def _outcome(options: Namespace, result: Any) -> Outcome:
    from kerasmem.report.comparison import before_and_after
    from kerasmem.report.quantization import noise_table, worst_first
    from kerasmem.report.tables import comparison_table

    report, changes = result.report, result.changes
    data = {
        "model": options.model,
        "output": str(options.output),
        "file_ratio": report.file_ratio,
        "weight_ratio": report.weight_ratio,
        "report": asdict(report),
        "changes": [asdict(change) for change in changes],
    }
    changed = {change.weight for change in changes if change.changed}
    left_alone = {change.weight for change in changes} - changed
    summary = (
        f"weights changed: {len(changed)}, left alone: {len(left_alone)} (why: --json, "
        "--report). Files are without optimizer state, the first as Keras saves it."
    )
    table = comparison_table(before_and_after(report), str(options.output))
    noise = (noise_table(changes),) if worst_first(changes) else ()
    return Outcome(data, (table, *noise, summary))
