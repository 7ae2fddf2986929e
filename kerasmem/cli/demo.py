"""`kerasmem demo`: the whole job on real images."""

from argparse import Namespace
from dataclasses import asdict
from pathlib import Path
from typing import Any

from kerasmem.cli.options import add_command
from kerasmem.cli.outcome import Outcome, progress_console


def add_to(commands: Any) -> None:
    """Add the command to the parser."""
    parser = add_command(
        commands, "demo", run, "Watch a training, shrink the model, teach a student."
    )
    parser.add_argument(
        "--out",
        type=Path,
        default=Path("kerasmem-demo"),
        metavar="DIR",
        help="folder for the files, made if it is missing (kerasmem-demo)",
    )
    parser.add_argument(
        "--data", metavar="NPZ", help="your own images instead of Fashion-MNIST"
    )


def run(options: Namespace) -> Outcome:
    """Run the demo and return what it measured."""
    from kerasmem.demo.run import run_demo
    from kerasmem.report.tables import comparison_table

    record = run_demo(options.out, options.data, console=progress_console())
    table = comparison_table(record.models, f"accuracy on {record.samples} test images")
    return Outcome(asdict(record), (table, "\n".join(record.files)))
