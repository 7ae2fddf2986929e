"""Bars on the page of a compression: the models side by side, and layer by layer."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from kerasmem.records import ModelFigures, WeightChange
from kerasmem.records.comparison import file_label
from kerasmem.report.page.packing import Packer
from kerasmem.units import format_bytes, format_ms

_MOST_LAYERS = 16


@dataclass(frozen=True)
class Bars:
    """A chart of rows with a bar for each model, or for before and after.

    Args:
        title: what it is of.
        bars: what the bars of a row are, in their order.
        rows: by its name the lengths of a row's bars, all on one scale.
        texts: by the same names what stands at the ends of the bars.
    """

    title: str
    bars: tuple[str, ...]
    rows: Mapping[str, Sequence[float]]
    texts: Mapping[str, Sequence[str]]

    @property
    def words(self) -> str:
        """What the chart shows, for those who cannot see it."""
        return " ".join(
            f"{name}: {', '.join(map(' '.join, zip(self.bars, texts, strict=True)))}."
            for name, texts in self.texts.items()
        )


def model_bars(models: Mapping[str, ModelFigures]) -> Bars | None:
    """Return the sizes and the time of models as shares of the first one's.

    Args:
        models: figures by the model's name, the one to compare with first.

    Returns:
        None without two models, or without a figure that all of them have.
    """
    figures = list(models.values())
    known = {
        file_label(figures): ([f.model_file_bytes for f in figures], format_bytes),
        "weights in RAM": ([f.weight_bytes for f in figures], format_bytes),
        "activation peak": ([f.activation_peak_bytes for f in figures], format_bytes),
        "median latency": ([f.latency_ms for f in figures], format_ms),
    }
    shown = {
        name: ([value for value in values if value], text)
        for name, (values, text) in known.items()
        if all(values)
    }
    if len(models) < 2 or not shown:
        return None
    return Bars(
        f"Size and time beside “{next(iter(models))}”",
        tuple(models),
        {name: [v / values[0] for v in values] for name, (values, _) in shown.items()},
        {name: [*map(text, values)] for name, (values, text) in shown.items()},
    )


def layer_bars(changes: Sequence[WeightChange]) -> Bars | None:
    """Return the bytes of each layer's weights in RAM, before and after.

    The layers that were largest have rows of their own.

    Args:
        changes: what each technique did to each weight, in order.

    Returns:
        None if no layer has other bytes than before.
    """
    first = dict[str, WeightChange]()
    for change in changes:
        first.setdefault(change.weight, change)
    last = {change.weight: change for change in changes}
    sizes = dict[str, tuple[int, int]]()
    for weight, change in first.items():
        layer = weight.rpartition("/")[0] or change.layer
        before, after = sizes.get(layer, (0, 0))
        sizes[layer] = (
            before + change.before_bytes,
            after + last[weight].after_bytes,
        )
    if all(before == after for before, after in sizes.values()):
        return None
    ranked = sorted(sizes, key=lambda layer: -sizes[layer][0])
    rows = {layer: sizes[layer] for layer in ranked[:_MOST_LAYERS]}
    if rest := [sizes[layer] for layer in ranked[_MOST_LAYERS:]]:
        before, after = map(sum, zip(*rest, strict=True))
        rows[f"{len(rest):,} smaller layers"] = (before, after)
    return Bars(
        "Weights of each layer in RAM",
        ("before", "after"),
        rows,
        {name: [*map(format_bytes, pair)] for name, pair in rows.items()},
    )


def packed_bars(charts: Mapping[str, Bars | None], packer: Packer) -> dict[str, Any]:
    """Return what the page's script reads of charts, by their names."""
    return {
        name: {
            "bars": chart.bars,
            "rows": [
                {"name": row, "values": packer.place(values), "texts": chart.texts[row]}
                for row, values in chart.rows.items()
            ],
        }
        for name, chart in charts.items()
        if chart
    }
