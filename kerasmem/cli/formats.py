"""`kerasmem convert`, `export` and `runtimes`: convert model files."""

import json
from argparse import Namespace
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from kerasmem.cli.command import (
    DATA,
    IMPORT,
    INPUT_SHAPE,
    MODEL,
    OUTPUT,
    CommandResult,
    at_least,
    command,
    not_negative,
    option,
    say,
    varied,
)
from kerasmem.records.regular import check_output

_TOLERANCE = option(
    "--tolerance",
    type=not_negative,
    metavar="X",
    help="Maximum deviation of the file from the model: accuracy drop (default: "
    "0.005), changed classes (0.02), or relative error (0.05; 1e-5 for float).",
)


@command(
    "convert",
    "Convert a tf_keras or tfmot model file to Keras 3, and compare the two models.",
    MODEL,
    OUTPUT,
    option(
        "--no-compare",
        dest="compares",
        action="store_false",
        help="Skip the comparison of outputs with tf_keras.",
    ),
    IMPORT,
)
def convert(options: Namespace) -> CommandResult:
    """Convert the model and return the difference of the outputs."""
    from kerasmem.errors import ModelError
    from kerasmem.extras.legacy import comparison, read
    from kerasmem.files import save_model

    check_output(options.output, ".keras")
    path = Path(options.model)
    model = read.load_converted(path)
    difference, reason = None, "--no-compare was passed"
    if options.compares:
        say("comparing with tf_keras in a separate process")
        try:
            difference = comparison.compare(path, model)
        except ModelError as error:
            reason = str(error)
    save_model(model.layer, options.output)
    data = {
        "model": options.model,
        "output": str(options.output),
        "parameters": model.layer.count_params(),
        "largest_difference": difference,
        "not_compared": reason if difference is None else None,
    }
    return CommandResult(data, (_summary(data),))


def _summary(data: dict[str, Any]) -> str:
    difference = data["largest_difference"]
    comparison = (
        f"not compared with the original model: {data['not_compared']}"
        if difference is None
        else f"largest difference from the outputs in tf_keras: {difference:.2g}"
    )
    return f"{data['output']}: {data['parameters']} parameters\n{comparison}"


@command(
    "export",
    "Write a model as a LiteRT or ONNX file in float, int8 or int4, and compare their "
    "outputs.",
    MODEL,
    varied(
        OUTPUT,
        help="Output file (.tflite or .onnx). Nothing is written if the command fails.",
    ),
    option(
        "--scheme",
        choices=("float", "int8-dynamic", "int8-static", "int4"),
        help="Precision of the file. int8-static needs --data (default: the precision "
        "of the model's weights).",
    ),
    varied(
        DATA,
        "Samples for calibration (at most 128) and, from the test split, to compare "
        "the outputs (at most 512). Default: random inputs.",
    ),
    option(
        "--batch-size",
        type=at_least(1),
        metavar="N",
        help="Fixed length of the batch axis (default: open, or 1 where LiteRT needs "
        "a fixed length).",
    ),
    _TOLERANCE,
    INPUT_SHAPE,
    IMPORT,
)
def export(options: Namespace) -> CommandResult:
    """Export the model and return the loss and the operations in other precisions."""
    from kerasmem.extras.litert import export as export_model
    from kerasmem.files import load_model
    from kerasmem.files.data import LoadedData, load_data

    data = load_data(options.data) if options.data else LoadedData(None)
    report = export_model(
        load_model(options.model),
        options.output,
        scheme=options.scheme,
        batch_size=options.batch_size,
        samples=data.train,
        validation_data=data.test,
        tolerance=options.tolerance,
        input_shape=options.input_shapes,
    )
    return CommandResult(
        {"model": options.model, **asdict(report)}, tuple(report.lines())
    )


@command(
    "runtimes",
    "Measure a model in Keras, with int8 weights and as LiteRT files, and recommend a "
    "form for each use.",
    MODEL,
    DATA,
    option(
        "--batch-size",
        dest="batch_sizes",
        type=at_least(1),
        action="append",
        metavar="N",
        help="Number of samples per batch. Repeatable (default: 1 and 32).",
    ),
    option(
        "--threads",
        type=at_least(1),
        default=1,
        metavar="N",
        help="Number of LiteRT threads (default: 1).",
    ),
    _TOLERANCE,
    INPUT_SHAPE,
    IMPORT,
)
def runtimes(options: Namespace) -> CommandResult:
    """Measure each form of the model and recommend one for each use."""
    from kerasmem.cli.evaluation import file_sentence
    from kerasmem.extras.litert.runtimes import advise, compare_runtimes
    from kerasmem.files import load_model
    from kerasmem.files.contents import file_size
    from kerasmem.files.data import load_data
    from kerasmem.report.benchmarks import (
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
    size = file_size(options.model)
    as_it_is, *others = comparison.runtimes
    if not as_it_is.reason:
        own = size.file_bytes - size.optimizer_file_bytes
        forms = (replace(as_it_is, file_bytes=own), *others)
        comparison = replace(comparison, runtimes=forms, advice=advise(forms))
    tables = [
        runtimes_table(comparison, options.model),
        missing_lines(comparison),
        conditions_line(comparison),
        file_sentence("Input file", *size),
        advice_lines(comparison),
    ]
    data = json.loads(comparison.to_json()) | {"model": options.model}
    return CommandResult(data, tuple(table for table in tables if table))
