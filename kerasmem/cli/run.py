"""`kerasmem run`, `report` and `demo`: monitor trainings and show the records."""

import argparse
import ast
import importlib.util
import os
import signal
import subprocess
import sys
import warnings
import zipfile
from argparse import Namespace
from contextlib import suppress
from dataclasses import asdict
from datetime import datetime
from pathlib import Path
from typing import Any

from kerasmem.cli.command import (
    OUTPUT,
    CommandResult,
    command,
    option,
    progress_console,
    say,
    varied,
)
from kerasmem.errors import ConfigError, InputError
from kerasmem.records import PostMortem
from kerasmem.records.plain import MOST_BYTES
from kerasmem.records.post_mortem import (
    cause_sentence,
    fitting_sentence,
    moment_words,
)
from kerasmem.records.regular import check_output, read_regular

_CHILD = Path(__file__).with_name("watched_script.py")
# TensorFlow reads these variables once, on import. Its CPU allocator then logs every
# allocation.
_COUNTING_ALLOCATOR = {"TF_CPU_ALLOCATOR_USE_BFC": "1", "TF_ENABLE_ONEDNN_OPTS": "0"}


@command(
    "run",
    "Run a training script with MemoryMonitor and GradientMonitor in every fit.",
    option(
        "--timeline",
        action="store_true",
        help="Add MemoryTimeline, and make TensorFlow's CPU allocator log allocations.",
    ),
    option(
        "--log-dir",
        type=Path,
        metavar="RUN_DIR",
        help="Folder for the records (default: runs/SCRIPT-DATE-TIME).",
    ),
    option("script", metavar="SCRIPT.py", type=Path, help="Training script."),
    option(
        "arguments",
        nargs=argparse.REMAINDER,
        metavar="...",
        help="Arguments after the script name are passed to the script.",
    ),
    starts_keras=False,
    exit_codes="Exit code: the exit code of the script, or 2 for invalid usage.",
)
def run(options: Namespace) -> CommandResult:
    """Run the script in a child process and return its exit code."""
    script: Path = options.script
    if not script.is_file():
        raise ConfigError(f"The script does not exist. Received: {str(script)!r}.")
    if not _is_python(script):
        raise ConfigError(
            "The script is not Python code. Expected: a Python training script. "
            f"Received: {str(script)!r}."
        )
    now = datetime.now().astimezone()
    log_dir: Path = (
        options.log_dir or Path("runs") / f"{script.stem}-{now:%Y%m%d-%H%M%S}"
    )
    # Without -P, `import inspect` would import this package's `inspect.py`.
    command = [sys.executable, "-P", str(_CHILD), str(log_dir.resolve())]
    command += ["timeline" if options.timeline else "", str(script), *options.arguments]
    earlier = _post_mortems(log_dir)
    child = subprocess.Popen(
        command,
        env={**(_COUNTING_ALLOCATOR if options.timeline else {}), **os.environ},
        # With --json, stdout contains only the result.
        stdout=sys.stderr.fileno() if options.json else None,
    )
    status = _wait_for(child)
    code = status if status >= 0 else 128 - status
    for post_mortem in _post_mortems(log_dir):
        if post_mortem not in earlier:
            moment = moment_words(post_mortem)
            causes = (cause_sentence(post_mortem.cause), fitting_sentence(post_mortem))
            say(f"Out of memory, {moment}: {' '.join(causes).strip()}")
    file_names = sorted(p.name for p in log_dir.iterdir()) if log_dir.is_dir() else []
    if not file_names:
        say(
            f"No records in {log_dir}: {script} called no fit, or the folder "
            "could not be written."
        )
    elif not options.json:
        say(f"Recorded in {log_dir}. Next: kerasmem report {log_dir} -o page.html")
    data = {"script": str(script), "exit_code": code, "log_dir": str(log_dir)}
    return CommandResult(data | {"files": file_names}, (), exit_code=code)


def _is_python(script: Path) -> bool:
    """Return whether Python can run a file.

    A syntax error in a `.py` file is reported by its own traceback.
    """
    if zipfile.is_zipfile(script):
        with zipfile.ZipFile(script) as archive:
            return not {"__main__.py", "__main__.pyc"}.isdisjoint(archive.namelist())
    if script.suffix in (".py", ".pyc"):
        return True
    try:
        with warnings.catch_warnings(action="ignore"):
            ast.parse(script.read_bytes())
    except (SyntaxError, ValueError):
        return False
    return True


def _post_mortems(log_dir: Path) -> list[PostMortem]:
    lines: list[str] = []
    records: list[PostMortem] = []
    # `kerasmem report` reports incomplete records.
    for file in sorted(log_dir.glob("post_mortems*.jsonl")):
        with suppress(InputError, OSError):
            lines += read_regular(file, MOST_BYTES).decode(errors="replace").split("\n")
    for line in lines:
        with suppress(InputError):
            records.append(PostMortem.from_json(line))
    return records


def _wait_for(child: "subprocess.Popen[bytes]") -> int:
    # The terminal also sends Ctrl-C to the script, which may need time to save its
    # state. `subprocess.run` would kill it after 0.25 seconds. SIGTERM is sent only to
    # this process, so it is forwarded.
    handlers: dict[int, Any] = {
        signal.SIGINT: lambda *_: None,
        signal.SIGTERM: lambda number, _: child.send_signal(number),
    }
    before = {number: signal.signal(number, do) for number, do in handlers.items()}
    try:
        return child.wait()
    finally:
        for number, do in before.items():
            signal.signal(number, signal.SIG_DFL if do is None else do)


@command(
    "report",
    "Write the records of a monitored run to one self-contained HTML page.",
    option(
        "run_dir",
        metavar="RUN_DIR",
        type=Path,
        help="Folder that `kerasmem run` printed, or log_dir of a monitor.",
    ),
    varied(
        OUTPUT,
        metavar="FILE.html",
        help="Output page (.html). Nothing is written if the command fails.",
    ),
    option(
        "--tensorboard",
        type=Path,
        metavar="DIR",
        help="Also write all figures as TensorBoard scalars to this folder.",
    ),
    option(
        "--mlflow",
        metavar="EXPERIMENT",
        help="Also log all figures and the page to MLflow (pip install "
        "kerasmem[mlflow]).",
    ),
    option(
        "--wandb",
        metavar="PROJECT",
        help="Also log all figures and the page to Weights & Biases (pip install "
        "kerasmem[wandb]).",
    ),
)
def report(options: Namespace) -> CommandResult:
    """Write the page and return the most important figures."""
    from kerasmem.extras.trackers import TRACKERS, check_trackers, logged
    from kerasmem.files.read_run import read_run
    from kerasmem.records import gravest_first
    from kerasmem.report.run import write_run_page
    from kerasmem.report.run.headline import (
        finding_table,
        headline,
        headline_table,
        post_mortem_table,
        title,
    )
    from kerasmem.units import format_bytes

    check_output(options.output, ".html")
    options_by_tracker = {name: getattr(options, name) for name in TRACKERS}
    targets = {
        name: target
        for name, target in options_by_tracker.items()
        if target is not None
    }
    check_trackers(targets)
    run_record = read_run(options.run_dir)
    for note in run_record.notes:
        say(note)
    write_run_page(run_record, options.output)
    scalars = {
        name: logged(run_record, options.output, name, target)
        for name, target in targets.items()
    }
    figures = headline(run_record)
    findings = gravest_first(run_record.findings)
    size = options.output.stat().st_size
    data = {
        "run_dir": str(options.run_dir),
        "page": str(options.output),
        "page_bytes": size,
        "headline": [asdict(figure) for figure in figures],
        "findings": [asdict(finding) for finding in findings],
        "post_mortems": [
            asdict(post_mortem) for post_mortem in run_record.post_mortems
        ],
        "notes": list(run_record.notes),
        "memory_readings": len(run_record.memory),
        "gradient_epochs": len(run_record.gradients),
        "timelines": len(run_record.timelines),
        "scalars": scalars,
    }
    lines = [f"page: {options.output}, {format_bytes(size)}"]
    lines += [_logged_line(name, targets[name], n) for name, n in scalars.items()]
    tables = [headline_table(figures, title(run_record))]
    if run_record.post_mortems:
        tables.append(post_mortem_table(run_record.post_mortems))
    if findings:
        tables.append(finding_table(findings))
    return CommandResult(data, (*tables, "\n".join(lines)))


def _logged_line(tracker: str, target: object, scalars: int) -> str:
    if tracker != "tensorboard":
        return f"{tracker}: {scalars:,} scalars and the page in {target}"
    how = f"tensorboard --logdir {target}"
    if importlib.util.find_spec("tensorboard") is None:
        how += ", after pip install kerasmem[tensorboard], which is missing here"
    return f"TensorBoard: {scalars:,} scalars in {target} (to view them: {how})"


@command(
    "demo",
    "Monitor a training, compress the model, and distill a student.",
    option(
        "--out",
        type=Path,
        default=Path("kerasmem-demo"),
        metavar="DIR",
        help="Output folder, created if missing (default: kerasmem-demo).",
    ),
)
def demo(options: Namespace) -> CommandResult:
    """Run the demo and return its figures."""
    from kerasmem.demo.run import run_demo
    from kerasmem.records.comparison import comparison_table

    record = run_demo(options.out, console=progress_console())
    table = comparison_table(record.models, f"accuracy on {record.samples} test images")
    return CommandResult(asdict(record), (table, "\n".join(record.files)))
