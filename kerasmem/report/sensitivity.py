"""The sensitivity of a model's weights as a plot."""

from pathlib import Path

from kerasmem.compression.prune.analysis import Sensitivity


def plot_sensitivity(found: Sensitivity, path: str | Path) -> None:
    """Write a plot of the metric against the sparsity of each weight.

    Args:
        found: what `kerasmem.compression.prune.analysis.sensitivity` returned.
        path: of the file; its ending says the format, such as `.svg` or `.png`.
    """
    from matplotlib.figure import Figure

    figure = Figure(figsize=(8, 5), layout="constrained")
    axes = figure.add_subplot()
    for weight in found.weights:
        places = [0.0, *found.sparsities]
        axes.plot(places, [found.baseline, *weight.values], "o-", label=weight.weight)
    axes.set_xlabel("sparsity of one weight")
    axes.set_ylabel(found.metric)
    axes.legend(fontsize="small")
    figure.savefig(path)
