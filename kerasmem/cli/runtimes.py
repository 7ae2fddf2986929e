"""`kerasmem runtimes`: a model in Keras, with int8 weights, as LiteRT files."""

import json
from argparse import Namespace
from dataclasses import replace
from typing import Any

from kerasmem.cli.handed_in import file_sentence, of_its_file
from kerasmem.cli.options import (
    add_command,
    add_imports,
    add_input_shape,
    add_model,
    add_samples,
    at_least,
    not_negative,
)
from kerasmem.cli.outcome import Outcome


def add_to(commands: Any) -> None:
    """Add the command to the parser."""
    parser = add_command(
        commands,
        "runtimes",
        run,
        "Measure a model in Keras, with int8 weights and as LiteRT files, and say "
        "which to use where.",
    )
    add_model(parser)
    add_samples(parser, required=False)
    parser.add_argument(
        "--batch-size",
        dest="batch_sizes",
        type=at_least(1),
        action="append",
        metavar="N",
        help="samples; repeatable (1 and 32)",
    )
    parser.add_argument(
        "--threads", type=at_least(1), default=1, metavar="N", help="of LiteRT (1)"
    )
    parser.add_argument(
        "--tolerance",
        type=not_negative,
        metavar="0.2",
        help="largest difference of a file from the model, as a share of the largest "
        "output (0.1 with int8-dynamic, 1e-5 with floats)",
    )
    add_input_shape(parser)
    add_imports(parser)


def run(options: Namespace) -> Outcome:
    """Return what each form of the model costs, and which to use for what."""
    from kerasmem.exporting.runtimes import compare_runtimes
    from kerasmem.exporting.runtimes.compare import advise
    from kerasmem.files import load_model
    from kerasmem.files.data import load_data
    from kerasmem.report.runtimes import (
        advice_lines,
        conditions_line,
        missing_lines,
        runtimes_table,
    )

    comparison = compare_runtimes(
        load_model(options.model),
        load_data(options.data).train if options.data else None,
        batch_sizes=options.batch_sizes or (1, 32),
        threads=options.threads,
        tolerance=options.tolerance,
        input_shape=options.input_shapes,
    )
    as_it_is, *others = comparison.runtimes
    if not as_it_is.reason:
        runtimes = (of_its_file(as_it_is, options.model), *others)
        comparison = replace(comparison, runtimes=runtimes, advice=advise(runtimes))
    tables = [
        runtimes_table(comparison, options.model),
        missing_lines(comparison),
        conditions_line(comparison),
        file_sentence(options.model, "of Keras, as it is,"),
        advice_lines(comparison),
    ]
    data = json.loads(comparison.to_json()) | {"model": options.model}
    return Outcome(data, tuple(table for table in tables if table))
