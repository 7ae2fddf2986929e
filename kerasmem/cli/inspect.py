"""`kerasmem inspect`: where the bytes of a model are."""

from argparse import Namespace
from dataclasses import asdict
from pathlib import Path
from typing import Any

from kerasmem.cli.options import add_batch_size, add_command, add_imports
from kerasmem.cli.outcome import Outcome


def add_to(commands: Any) -> None:
    """Add the command to the parser."""
    parser = add_command(
        commands,
        "inspect",
        run,
        "Show where the bytes of a saved model are, per layer.",
    )
    parser.add_argument("model", metavar="MODEL", help="a .keras or .h5 file")
    add_batch_size(parser, default=1)
    add_imports(parser)


def run(options: Namespace) -> Outcome:
    """Return the model's layers with their shapes, parameters and bytes."""
    from kerasmem.files import load_model
    from kerasmem.memory.activations import layer_activations, peak_activation_bytes
    from kerasmem.report.tables import layer_table
    from kerasmem.units import format_bytes

    model = load_model(options.model)
    layers = layer_activations(model, options.batch_size)
    peak = peak_activation_bytes(model, options.batch_size)
    file_bytes = Path(options.model).stat().st_size
    data = {
        "model": options.model,
        "batch_size": options.batch_size,
        "file_bytes": file_bytes,
        "weight_bytes": sum(layer.weight_bytes for layer in layers),
        "parameters": sum(layer.parameters for layer in layers),
        "activation_peak_bytes": peak,
        "layers": [asdict(layer) for layer in layers],
    }
    peak_text = "unknown: the model has no graph, or axes of unknown length"
    summary = (
        f"file: {format_bytes(file_bytes)}, with optimizer state if it was saved\n"
        f"activation peak of a batch of {options.batch_size}, estimated: "
        f"{peak_text if peak is None else format_bytes(peak)}"
    )
    title = f"{options.model}, batch of {options.batch_size}"
    return Outcome(data, (layer_table(layers, title), summary))
