"""`kerasmem inspect`: shows the bytes of a model by layer."""

from argparse import Namespace
from dataclasses import asdict
from typing import Any

from kerasmem.cli.command import (
    IMPORT,
    MODEL,
    CommandResult,
    batch_of,
    command,
)


@command(
    "inspect",
    "Show the bytes of a saved model per layer.",
    MODEL,
    batch_of(1),
    IMPORT,
)
def inspect(options: Namespace) -> CommandResult:
    """Return the layers with their shapes, parameters and bytes."""
    from kerasmem.files import inspect_file
    from kerasmem.files.contents import file_size, optimizer_state
    from kerasmem.report.memory import contents_table, layer_table

    layers, peak = _layers(options)
    state = optimizer_state(options.model)
    contents = inspect_file(options.model)
    outputs = [layer.output_bytes for layer in layers]
    data = {
        "model": options.model,
        "batch_size": options.batch_size,
        "file_bytes": contents.file_bytes,
        "weight_bytes": sum(layer.weight_bytes for layer in layers),
        "parameters": sum(layer.parameters for layer in layers),
        "optimizer_bytes": state.bytes if state else None,
        "optimizer_file_bytes": file_size(options.model).optimizer_file_bytes,
        "output_bytes": None if None in outputs else sum(outputs),
        "activation_peak_bytes": peak,
        "layers": [asdict(layer) for layer in layers],
        "contents": asdict(contents),
    }
    title = f"{options.model}, batch of {options.batch_size}"
    summary = _summary(data, is_fresh=state is not None and state.is_fresh)
    tables = (layer_table(layers, title), contents_table(contents), summary)
    return CommandResult(data, tables)


def _layers(options: Namespace) -> tuple[list[Any], int | None]:
    from kerasmem.errors import InputError
    from kerasmem.files.described import described_model
    from kerasmem.graph.activations import layer_activations, peak_activation_bytes
    from kerasmem.graph.layers import has_weights

    with described_model(options.model) as model:
        if not (model.built or has_weights(model)):
            raise InputError(
                "The model in the file has no weights yet. "
                f"Received: {options.model!r}. Next: before saving, call the model on "
                "a batch or add a keras.Input."
            )
        layers = layer_activations(model, options.batch_size)
        return layers, peak_activation_bytes(model, options.batch_size)


def _summary(data: dict[str, Any], *, is_fresh: bool) -> str:
    from kerasmem.units import format_bytes

    peak, state = data["activation_peak_bytes"], data["optimizer_bytes"]
    unknown = "unknown: the model has no graph, or has axes of unknown length"
    in_file = format_bytes(data["optimizer_file_bytes"])
    size = f"{format_bytes(state or 0)} in RAM, {in_file} in the file"
    none = "none in the file" if state == 0 else "unknown: not stored in this file"
    return (
        f"file: {format_bytes(data['file_bytes'])}\n"
        f"optimizer state: {size if state else none}{', before any step' * is_fresh}\n"
        f"activation peak of a batch of {data['batch_size']}, estimated: "
        f"{unknown if peak is None else format_bytes(peak)}"
    )
