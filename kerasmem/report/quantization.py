"""What each weight lost when it was quantized, the worst first."""

from collections.abc import Sequence
from pathlib import Path

from rich.table import Table

from kerasmem.records import WeightChange
from kerasmem.units import format_bytes

_DONE = {"quantize": "quantized", "factorize": "factorized", "cluster": "clustered"}


def worst_first(changes: Sequence[WeightChange]) -> list[WeightChange]:
    """Return the weights that lost something, the lowest ratio first.

    It is that of what their layers make where that was measured, else their own.
    """
    lossy = [change for change in changes if change.sqnr_db is not None]
    return sorted(lossy, key=_ratio)


def noise_table(changes: Sequence[WeightChange], most: int = 10) -> Table:
    """Return the signal-to-quantization-noise ratios of weights, the worst first.

    Args:
        changes: what `km.compress` did to every weight.
        most: number of lines.
    """
    worst = worst_first(changes)
    measured = _measured(worst)
    done = dict.fromkeys(_DONE.get(change.technique, "changed") for change in worst)
    of = f"{' and '.join(done)} weights"
    if measured:
        of += " and of layers' outputs"
    title = f"signal-to-noise ratio of {of}, the worst first"
    if len(worst) > most:
        title += f" ({most} of {len(worst)})"
    table = Table(title=title, title_justify="left")
    for name in ("weight", "stored as"):
        table.add_column(name, overflow="fold")
    for name in ("SQNR", *(["of outputs"] if measured else []), "before", "after"):
        table.add_column(name, justify="right")
    for change in worst[:most]:
        table.add_row(
            change.weight,
            change.detail,
            _decibels(change.sqnr_db),
            *([_decibels(change.output_sqnr_db)] if measured else []),
            format_bytes(change.before_bytes),
            format_bytes(change.after_bytes),
        )
    return table


def plot_noise(
    changes: Sequence[WeightChange], path: str | Path, most: int = 30
) -> None:
    """Write a bar plot of the signal-to-quantization-noise ratios, the worst on top.

    Beside the bar of a weight is that of what its layer makes, where it was measured.

    Args:
        changes: what `km.compress` did to every weight.
        path: of the file; its ending says the format, such as `.svg` or `.png`.
        most: number of bars.
    """
    from matplotlib.figure import Figure

    worst = worst_first(changes)[:most]
    series = {"weight": [change.sqnr_db or 0.0 for change in worst]}
    if _measured(worst):
        series["output on data"] = [change.output_sqnr_db or 0.0 for change in worst]
    height = 1.5 + 0.25 * len(worst) * len(series)
    figure = Figure(figsize=(8, height), layout="constrained")
    axes = figure.add_subplot()
    thick = 0.8 / len(series)
    for number, (name, values) in enumerate(series.items()):
        places = [index + number * thick for index in range(len(worst))]
        axes.barh(places, values, thick, label=name)
    middle = thick * (len(series) - 1) / 2
    places = [index + middle for index in range(len(worst))]
    axes.set_yticks(places, [change.weight for change in worst])
    axes.invert_yaxis()
    axes.set_xlabel("signal-to-quantization-noise ratio, dB")
    axes.tick_params(axis="y", labelsize="small")
    axes.legend()
    figure.savefig(path)


def _ratio(change: WeightChange) -> float:
    if change.output_sqnr_db is not None:
        return change.output_sqnr_db
    return change.sqnr_db or 0.0


def _measured(changes: Sequence[WeightChange]) -> bool:
    return any(change.output_sqnr_db is not None for change in changes)


def _decibels(ratio: float | None) -> str:
    return "" if ratio is None else f"{ratio:.1f} dB"
