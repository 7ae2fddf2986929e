"""`kerasmem report`: what a monitored run recorded, as one self-contained page."""

import importlib.util
from argparse import Namespace
from dataclasses import asdict
from pathlib import Path
from typing import Any

from kerasmem.cli.options import add_command, check_output
from kerasmem.cli.outcome import Outcome, say


def add_to(commands: Any) -> None:
    """Add the command to the parser."""
    parser = add_command(
        commands,
        "report",
        run,
        "Show what a monitored run recorded, as one self-contained page.",
    )
    parser.add_argument(
        "run_dir",
        metavar="RUN_DIR",
        type=Path,
        help="the folder that a monitor was given as log_dir",
    )
    parser.add_argument(
        "-o",
        "--output",
        required=True,
        type=Path,
        metavar="FILE.html",
        help="the page to write, whole or not at all",
    )
    parser.add_argument(
        "--tensorboard",
        type=Path,
        metavar="DIR",
        help="write every figure there too, as TensorBoard scalars",
    )


def run(options: Namespace) -> Outcome:
    """Write the page and return what a reader wants first."""
    from kerasmem.files.read_run import read_run
    from kerasmem.report.run import write_run_page
    from kerasmem.report.run.headline import headline, title
    from kerasmem.report.run.tensorboard import write_tensorboard
    from kerasmem.report.run.terminal import (
        finding_table,
        headline_table,
        post_mortem_table,
    )
    from kerasmem.units import format_bytes

    check_output(options.output, ".html")
    recorded = read_run(options.run_dir)
    for note in recorded.notes:
        say(note)
    write_run_page(recorded, options.output)
    scalars = (
        write_tensorboard(recorded, options.tensorboard) if options.tensorboard else 0
    )
    figures = headline(recorded)
    size = options.output.stat().st_size
    data = {
        "run_dir": str(options.run_dir),
        "page": str(options.output),
        "page_bytes": size,
        "headline": [asdict(figure) for figure in figures],
        "findings": [asdict(finding) for finding in recorded.findings],
        "post_mortems": [asdict(found) for found in recorded.post_mortems],
        "notes": list(recorded.notes),
        "memory_readings": len(recorded.memory),
        "gradient_epochs": len(recorded.gradients),
        "timelines": len(recorded.timelines),
        "scalars": scalars,
    }
    written = [f"page: {options.output}, {format_bytes(size)}"]
    if options.tensorboard:
        written.append(_tensorboard_line(options.tensorboard, scalars))
    tables = [headline_table(figures, title(recorded))]
    if recorded.post_mortems:
        tables.append(post_mortem_table(recorded.post_mortems))
    if recorded.findings:
        tables.append(finding_table(recorded.findings))
    return Outcome(data, (*tables, "\n".join(written)))


def _tensorboard_line(folder: Path, scalars: int) -> str:
    """Return what was written for TensorBoard, and how to see it."""
    how = f"tensorboard --logdir {folder}"
    if importlib.util.find_spec("tensorboard") is None:
        how += ", after pip install kerasmem[tensorboard]: it is not installed here"
    return f"TensorBoard: {scalars:,} scalars in {folder} (to see them: {how})"
