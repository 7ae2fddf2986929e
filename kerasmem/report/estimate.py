"""The table of a memory estimate, and whether it fits."""

from rich.table import Table

from kerasmem.records import MemoryEstimate
from kerasmem.units import format_bytes

_NAMES = {
    "parameter": "parameters",
    "gradient": "gradients",
    "optimizer_state": "optimizer state",
    "activation": "activations kept for the backward pass",
    "temporary": "temporaries",
    "input": "input batch",
    "workspace": "workspace of kernels",
    "rounding": "allocator, rounding",
    "pool": "allocator, pool beside it",
    "unknown": "unknown",
}
_NO_LAYER = "(no layer)"


def category_table(estimate: MemoryEstimate, title: str = "") -> Table:
    """Return what the peak is made of, one line per category and one for the sum."""
    table = _table("in use at the peak (estimated)", title)
    for category, nbytes in estimate.by_category().items():
        if category != "pool":
            _add_row(table, _NAMES[category], nbytes, estimate.peak_bytes)
    table.add_section()
    _add_row(table, "peak", estimate.peak_bytes, estimate.peak_bytes)
    return table


def largest_layers_table(estimate: MemoryEstimate, count: int) -> Table:
    """Return the layers with most bytes at the peak.

    Args:
        estimate: the estimate.
        count: number of layers to list, from 0.
    """
    table = _table("largest layers at the peak (estimated)")
    for layer, nbytes in list(estimate.by_layer().items())[:count]:
        _add_row(table, layer or _NO_LAYER, nbytes, estimate.peak_bytes)
    return table


def estimate_summary(estimate: MemoryEstimate) -> str:
    """Return the figures of an estimate in words."""
    lines = [
        f"peak: {format_bytes(estimate.peak_bytes)}, nine times in ten between "
        f"{format_bytes(estimate.low_bytes)} and {format_bytes(estimate.high_bytes)}"
    ]
    first = estimate.first_step_bytes
    low, high = estimate.first_step_low_bytes, estimate.first_step_high_bytes
    if first is not None and low is not None and high is not None:
        lines.append(
            f"first step, in which algorithms are tried out: {format_bytes(first)}, "
            f"between {format_bytes(low)} and {format_bytes(high)}"
        )
    pool = estimate.by_category().get("pool", 0)
    if pool:
        lines.append(f"the allocator's pool holds {format_bytes(pool)} beside the peak")
    return "\n".join(lines)


def verdict_line(estimate: MemoryEstimate, memory_limit: int) -> str:
    """Return whether the estimate fits into `memory_limit` bytes, with the figures."""
    return (
        f"{estimate.verdict(memory_limit)}: limit {format_bytes(memory_limit)}, "
        f"estimated need {format_bytes(estimate.low_bytes)} to "
        f"{format_bytes(estimate.high_bytes)}"
    )


def _table(name: str, title: str = "") -> Table:
    table = Table(title=title or None, title_justify="left")
    table.add_column(name, overflow="fold")
    table.add_column("bytes", justify="right")
    table.add_column("share", justify="right")
    return table


def _add_row(table: Table, name: str, nbytes: int, whole: int) -> None:
    share = f"{nbytes / whole:.1%}" if whole else ""
    table.add_row(name, format_bytes(nbytes), share)
