"""`kerasmem demo`: the whole job on real images."""

from argparse import Namespace
from pathlib import Path
from typing import Any

from kerasmem.cli.options import add_command
from kerasmem.cli.outcome import Outcome


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
    from dataclasses import asdict

    from kerasmem.demo.run import run_demo

    record = run_demo(options.out, options.data)
    return Outcome(asdict(record), ())
