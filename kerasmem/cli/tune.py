"""`kerasmem tune`: peak and step time of a training under each option."""

import json
from argparse import Namespace
from typing import Any

from kerasmem.cli.options import (
    add_batch_size,
    add_command,
    add_imports,
    add_input_shape,
    add_loss,
    add_model,
)
from kerasmem.cli.outcome import Outcome, say
from kerasmem.errors import ConfigError


def add_to(commands: Any) -> None:
    """Add the command to the parser."""
    parser = add_command(
        commands,
        "tune",
        run,
        "Measure the peak and the step time of a training under each option.",
    )
    add_model(parser)
    add_batch_size(parser, default=32)
    add_loss(parser)
    parser.add_argument(
        "--optimizer", help="its Keras name; the one in the file by default"
    )
    parser.add_argument(
        "--only",
        action="append",
        default=[],
        metavar="OPTION",
        help="a part of the name of the option to try, such as jit; repeatable",
    )
    add_input_shape(parser)
    add_imports(parser)


def run(options: Namespace) -> Outcome:
    """Return what each option costs, and what follows from it."""
    from kerasmem.cli.judging import compile_for
    from kerasmem.files import load_model
    from kerasmem.memory.tune import leave_room, tune
    from kerasmem.report.tuning import (
        failure_lines,
        odd_sizes_table,
        retracing_lines,
        spread_line,
        variants_table,
    )

    leave_room()
    model = load_model(options.model)
    compile_for(model, options.loss, ())
    if not model.compiled:
        raise ConfigError(
            "Training needs a loss and an optimizer. Expected: a file of a compiled "
            f"model. Received: {options.model!r}, saved without them. Next: pass "
            "--loss NAME, and --optimizer NAME (adam by default)."
        )
    tuning = tune(
        model,
        options.batch_size,
        optimizer=options.optimizer,
        input_shape=options.input_shapes,
        only=options.only,
        say=say,
    )
    title = (
        f"{options.model}, training, batch of {options.batch_size}, {tuning.backend}, "
        f"{tuning.device}, jit {'on' if tuning.jit_compile else 'off'}, "
        f"{tuning.dtype_policy}"
    )
    tables = [
        variants_table(tuning, title),
        failure_lines(tuning),
        spread_line(tuning),
        retracing_lines(tuning),
        odd_sizes_table(tuning) if tuning.odd_sizes else "",
        tuning.recommendation,
    ]
    data = json.loads(tuning.to_json()) | {"model": options.model}
    return Outcome(data, tuple(table for table in tables if table))
