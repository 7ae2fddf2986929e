"""`kerasmem convert`: what Keras 2 wrote, as a file of Keras 3."""

from argparse import Namespace
from pathlib import Path
from typing import Any

from kerasmem.cli.options import (
    add_command,
    add_imports,
    add_model,
    add_output,
    check_output,
)
from kerasmem.cli.outcome import Outcome, say


def add_to(commands: Any) -> None:
    """Add the command to the parser."""
    parser = add_command(
        commands,
        "convert",
        run,
        "Make a Keras 3 file of what tf_keras or tfmot wrote, and compare the two.",
    )
    add_model(parser)
    add_output(parser)
    parser.add_argument(
        "--no-compare",
        dest="compares",
        action="store_false",
        help="do not run the old model with tf_keras to compare the answers",
    )
    add_imports(parser)


def run(options: Namespace) -> Outcome:
    """Return what was converted, and how far the answers are from those before."""
    from kerasmem.errors import ModelError
    from kerasmem.files import save_model
    from kerasmem.legacy import compare, load_converted

    check_output(options.output, ".keras")
    path = Path(options.model)
    made = load_converted(path)
    comparison, reason = None, "not asked for"
    if options.compares:
        say("comparing with tf_keras, in a process of its own")
        try:
            comparison = compare(path, made)
        except ModelError as error:
            reason = str(error)
    save_model(made.layer, options.output)
    data = {
        "model": options.model,
        "output": str(options.output),
        "parameters": made.layer.count_params(),
        "largest_difference": comparison and comparison.largest_difference,
        "not_compared": None if comparison else reason,
    }
    return Outcome(data, (_summary(data),))


def _summary(data: dict[str, Any]) -> str:
    difference = data["largest_difference"]
    compared = (
        f"not compared with the model in the old file: {data['not_compared']}"
        if difference is None
        else f"largest difference of an answer from that of tf_keras: {difference:.2g}"
    )
    return f"{data['output']}: {data['parameters']} parameters\n{compared}"
