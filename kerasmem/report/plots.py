"""Still plots, by matplotlib: noise and sensitivity of the weights of a model."""

from collections.abc import Sequence
from pathlib import Path

from kerasmem.compression.prune.analysis import Sensitivity
from kerasmem.records import WeightChange
from kerasmem.records.weights import has_output_noise, worst_first


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
    if has_output_noise(worst):
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


def plot_sensitivity(sensitivity: Sensitivity, path: str | Path) -> None:
    """Write a plot of the metric against the sparsity of each weight.

    Args:
        sensitivity: what `kerasmem.compression.prune.analysis.sensitivity` returned.
        path: of the file; its ending says the format, such as `.svg` or `.png`.
    """
    from matplotlib.figure import Figure

    figure = Figure(figsize=(8, 5), layout="constrained")
    axes = figure.add_subplot()
    for weight in sensitivity.weights:
        places = [0.0, *sensitivity.sparsities]
        axes.plot(
            places, [sensitivity.baseline, *weight.values], "o-", label=weight.weight
        )
    axes.set_xlabel("sparsity of one weight")
    axes.set_ylabel(sensitivity.metric)
    axes.legend(fontsize="small")
    figure.savefig(path)
