"""What each weight lost when it was quantized, the worst first."""

from collections.abc import Sequence
from pathlib import Path

from rich.table import Table

from kerasmem.records import WeightChange
from kerasmem.units import format_bytes


def worst_first(changes: Sequence[WeightChange]) -> list[WeightChange]:
    """Return the weights that lost something, the lowest ratio first."""
    lossy = [change for change in changes if change.sqnr_db is not None]
    return sorted(lossy, key=lambda change: change.sqnr_db or 0.0)


def noise_table(changes: Sequence[WeightChange], most: int = 10) -> Table:
    """Return the signal-to-quantization-noise ratios of weights, the worst first.

    Args:
        changes: what `km.compress` did to every weight.
        most: number of lines.
    """
    worst = worst_first(changes)
    title = "signal-to-noise ratio of quantized weights, the worst first"
    if len(worst) > most:
        title += f" ({most} of {len(worst)})"
    table = Table(title=title, title_justify="left")
    for name in ("weight", "stored as"):
        table.add_column(name, overflow="fold")
    for name in ("SQNR", "before", "after"):
        table.add_column(name, justify="right")
    for change in worst[:most]:
        table.add_row(
            change.weight,
            change.detail,
            f"{change.sqnr_db:.1f} dB",
            format_bytes(change.before_bytes),
            format_bytes(change.after_bytes),
        )
    return table


def plot_noise(
    changes: Sequence[WeightChange], path: str | Path, most: int = 30
) -> None:
    """Write a bar plot of the signal-to-quantization-noise ratios, the worst on top.

    Args:
        changes: what `km.compress` did to every weight.
        path: of the file; its ending says the format, such as `.svg` or `.png`.
        most: number of bars.
    """
    from matplotlib.figure import Figure

    worst = worst_first(changes)[:most]
    height = 1.5 + 0.25 * len(worst)
    figure = Figure(figsize=(8, height), layout="constrained")
    axes = figure.add_subplot()
    axes.barh([c.weight for c in worst], [c.sqnr_db or 0.0 for c in worst])
    axes.invert_yaxis()
    axes.set_xlabel("signal-to-quantization-noise ratio of the weight, dB")
    axes.tick_params(axis="y", labelsize="small")
    figure.savefig(path)
