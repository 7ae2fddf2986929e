"""Tables of memory: by layer, by weight in a file, and of an estimated peak."""

from collections.abc import Sequence

import rich.table

from kerasmem.graph.activations import LayerActivations
from kerasmem.records import FileContents, MemoryEstimate
from kerasmem.records.estimate import NO_LAYER
from kerasmem.records.table import (
    MISSING,
    Table,
    bytes_or_missing,
    share_text,
    terminal_table,
)
from kerasmem.units import format_bytes


def layer_table(
    layers: Sequence[LayerActivations], title: str = ""
) -> rich.table.Table:
    """Returns the memory of a model by layer, with a total.

    Shares are relative to all weights and all outputs. If the size of an output is
    unknown, the total is a lower bound and shares of outputs are omitted.
    """
    weights = sum(layer.weight_bytes for layer in layers)
    sizes = [size for layer in layers if (size := layer.output_bytes) is not None]
    is_complete = len(sizes) == len(layers)
    rows = [
        (
            layer.name,
            layer.class_name,
            _shape(layer.output_shape),
            bytes_or_missing(layer.output_bytes),
            share_text(layer.output_bytes, sum(sizes)) if is_complete else MISSING,
            f"{layer.parameters:,}",
            format_bytes(layer.weight_bytes),
            share_text(layer.weight_bytes, weights),
        )
        for layer in layers
    ]
    at_least = "" if is_complete else "at least "
    outputs = f"{at_least}{format_bytes(sum(sizes))}" if sizes else MISSING
    parameters = f"{sum(layer.parameters for layer in layers):,}"
    count = f"{len(layers)} layers"
    rows.append(("all", count, "", outputs, "", parameters, format_bytes(weights), ""))
    head = ("layer", "class", "output shape", "output (est.)", "share")
    table = Table(
        title,
        (*head, "parameters", "weights in RAM", "share"),
        tuple(rows),
        texts=2,
        row_looks={len(layers): "strong"},
        sections=(len(layers),),
    )
    return terminal_table(table)


def contents_table(contents: FileContents, most: int = 12) -> rich.table.Table:
    """Returns the contents of a file, with `most` weights in separate rows."""
    largest, rest = contents.tensors[:most], contents.tensors[most:]

    def size_and_share(file_bytes: int) -> tuple[str, str]:
        return format_bytes(file_bytes), share_text(file_bytes, contents.file_bytes)

    rows = [
        (
            each.name,
            _shape(each.shape),
            each.dtype,
            format_bytes(each.weight_bytes),
            *size_and_share(each.file_bytes),
            each.coding,
        )
        for each in largest
    ]
    others = {f"{len(rest)} smaller weights": sum(each.file_bytes for each in rest)}
    others = (others if rest else {}) | contents.other
    rows += [
        (name, "", "", "", *size_and_share(size), "") for name, size in others.items()
    ]
    head = ("weight", "shape", "type", "in RAM", "in the file", "share", "written")
    table = Table(
        "in the file",
        head,
        tuple(rows),
        texts=3,
        last_texts=1,
        sections=(len(rows) - len(contents.other),),
    )
    return terminal_table(table)


def _shape(shape: tuple[int | None, ...] | None) -> str:
    if shape is None:
        return MISSING
    return " x ".join("?" if size is None else str(size) for size in shape)


_CATEGORIES = {
    "parameter": "parameters",
    "gradient": "gradients",
    "optimizer_state": "optimizer state",
    "activation": "activations kept for the backward pass",
    "temporary": "temporaries",
    "input": "input batch",
    "cache": "key-value cache",
    "workspace": "kernel workspace",
    "rounding": "allocator rounding",
    "unknown": "unknown",
}


def category_table(estimate: MemoryEstimate, title: str = "") -> rich.table.Table:
    """Returns the estimated peak by category, with a total."""
    sizes = {
        _CATEGORIES[category]: nbytes
        for category, nbytes in estimate.by_category().items()
    }
    sizes["peak"] = estimate.peak_bytes
    what = "in use at the peak (estimated)"
    return _parts_table(title, what, sizes, estimate.peak_bytes, len(sizes) - 1)


def largest_layers_table(estimate: MemoryEstimate, count: int) -> rich.table.Table:
    """Returns the `count` layers with the most bytes at the peak."""
    largest = list(estimate.by_layer().items())[:count]
    sizes = {layer or NO_LAYER: nbytes for layer, nbytes in largest}
    what = "largest layers at the peak (estimated)"
    return _parts_table("", what, sizes, estimate.peak_bytes)


def _parts_table(
    title: str, what: str, sizes: dict[str, int], whole: int, *sections: int
) -> rich.table.Table:
    rows = tuple(
        (name, format_bytes(nbytes), f"{nbytes / whole:.1%}" if whole else "")
        for name, nbytes in sizes.items()
    )
    table = Table(title, (what, "bytes", "share"), rows, sections=sections)
    return terminal_table(table)


def estimate_summary(estimate: MemoryEstimate) -> str:
    """Returns the figures of an estimate in words."""
    lines = [
        f"peak: {format_bytes(estimate.peak_bytes)}, in nine of ten cases between "
        f"{format_bytes(estimate.low_bytes)} and {format_bytes(estimate.high_bytes)}"
    ]
    first = estimate.first_step_bytes
    low, high = estimate.first_step_low_bytes, estimate.first_step_high_bytes
    if first is not None and low is not None and high is not None:
        lines.append(
            f"first step, with benchmarking of algorithms: {format_bytes(first)}, "
            f"between {format_bytes(low)} and {format_bytes(high)}"
        )
    if estimate.advice:
        lines.append(estimate.advice)
    return "\n".join(lines)


def verdict_line(estimate: MemoryEstimate, memory_limit: int) -> str:
    """Returns whether the estimate fits into `memory_limit` bytes."""
    return (
        f"{estimate.verdict(memory_limit)}: limit {format_bytes(memory_limit)}, "
        f"estimated need {format_bytes(estimate.low_bytes)} to "
        f"{format_bytes(estimate.high_bytes)}"
    )
