"""`kerasmem evaluate`: how well a model does and what it costs."""

from argparse import Namespace
from dataclasses import asdict
from typing import Any

from kerasmem.cli.handed_in import of_its_file
from kerasmem.cli.options import (
    add_batch_size,
    add_command,
    add_data,
    add_imports,
    add_model,
)
from kerasmem.cli.outcome import Outcome, say


def add_to(commands: Any) -> None:
    """Add the command to the parser."""
    parser = add_command(
        commands, "evaluate", run, "Measure a model: metrics, latency, memory, file."
    )
    add_model(parser)
    add_data(parser, required=True)
    add_batch_size(parser, default=32)
    add_imports(parser)


def run(options: Namespace) -> Outcome:
    """Return the model's figures on the test split, or on all data without one."""
    from kerasmem.cli.judging import check_judging, compile_for
    from kerasmem.compression.measure import measure
    from kerasmem.files import load_model
    from kerasmem.files.data import load_data, sample_count, warn_if_not_finite
    from kerasmem.report.tables import comparison_table

    model = load_model(options.model)
    loaded = load_data(options.data)
    data = loaded.train if loaded.test is None else loaded.test
    compile_for(model, options.loss, options.metrics)
    check_judging(model, data)
    warn_if_not_finite(data)
    say(f"measuring {options.model}")
    figures = measure(model, data, batch_size=options.batch_size)
    # The file that is there, not the one that kerasmem would write.
    figures = of_its_file(figures, options.model)
    result = {
        "model": options.model,
        "data": options.data,
        "split": "all" if loaded.test is None else "test",
        "samples": sample_count(data),
        "figures": asdict(figures),
    }
    return Outcome(result, (comparison_table({options.model: figures}),))
