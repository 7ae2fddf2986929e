"""Gradient norms over the epochs: global and per variable."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from kerasmem.records import GradientRecord
from kerasmem.records.table import Table, evenly, number_text, share_text
from kerasmem.report.page.panels import Lines, Panel
from kerasmem.report.run.epochs import continued
from kerasmem.units import format_bytes

_MOST_CELLS = 150_000
MEASURES = ("norm", "norm_max", "update_ratio", "zero_fraction", "max_abs", "nonfinite")


@dataclass(frozen=True)
class GradientFlow:
    """Gradient statistics by variable and epoch.

    Args:
        epochs: Epoch numbers, from 1.
        paths: Paths of the variables, in the order of the model.
        measures: Arrays of shape (variables, columns) by measure. NaN if missing.
        columns: Epoch numbers of the columns, from 1.
        merged: Number of epochs per column.
    """

    epochs: tuple[int, ...]
    paths: tuple[str, ...]
    measures: dict[str, np.ndarray]
    columns: tuple[int, ...]
    merged: int


def gradient_flow(records: Sequence[GradientRecord], model: str = "") -> GradientFlow:
    """Returns the gradient statistics of a run, merging epochs if there are many.

    A merged column contains the mean of norms, ratios and fractions, the largest
    maximum, and the sum of nonfinite entries. The name of the model is removed from the
    paths.
    """
    epochs = [epoch + 1 for epoch in continued(r.epoch for r in records)]
    sampled_epochs = [i for i, record in enumerate(records) if record.variables]
    paths = dict.fromkeys(v.path for i in sampled_epochs for v in records[i].variables)
    rows = {path: row for row, path in enumerate(paths)}
    shape = (len(paths), len(sampled_epochs))
    measures = {name: np.full(shape, np.nan) for name in MEASURES}
    for column, i in enumerate(sampled_epochs):
        for variable in records[i].variables:
            for name, array in measures.items():
                value = getattr(variable, name)
                if value is not None:
                    array[rows[variable.path], column] = value
    columns_per_group = max(
        1, math.ceil(len(paths) * len(sampled_epochs) / _MOST_CELLS)
    )
    return GradientFlow(
        tuple(epochs),
        tuple(path.removeprefix(f"{model}/") for path in paths),
        {
            name: _merge(name, array, columns_per_group)
            for name, array in measures.items()
        },
        tuple(epochs[i] for i in sampled_epochs[::columns_per_group]),
        columns_per_group,
    )


def norm_panel(records: Sequence[GradientRecord]) -> Panel | None:
    """Returns the chart of the global norm, or `None` without records."""
    lines = Lines()
    places = [epoch + 1 for epoch in continued(r.epoch for r in records)]
    for x, record in zip(places, records, strict=True):
        lines.add("mean", "peak", x, record.norm)
        lines.add("largest", "largest", x, record.norm_max)
    if not records:
        return None
    bad = [x for x, r in zip(places, records, strict=True) if r.nonfinite_steps]
    notes = ["The mean and the largest norm over the steps of each epoch."]
    if bad:
        notes.append("A cross marks an epoch with nonfinite gradients.")
    return Panel(
        "Global L2 norm of the gradient",
        lines.filled(),
        tuple(notes),
        unit="log",
        marks=tuple(bad),
    )


def _merge(name: str, array: np.ndarray, merged: int) -> np.ndarray:
    if merged == 1:
        return array
    padding = -array.shape[1] % merged
    padded_array = np.pad(array, ((0, 0), (0, padding)), constant_values=np.nan)
    groups = padded_array.reshape(len(array), -1, merged)
    if name == "nonfinite":
        return np.nansum(groups, axis=2)
    if name in {"norm_max", "max_abs"}:
        return np.fmax.reduce(groups, axis=2)
    with np.errstate(invalid="ignore"):  # groups without a value
        return np.nansum(groups, axis=2) / (~np.isnan(groups)).sum(axis=2)


def norm_table(records: Sequence[GradientRecord], flow: GradientFlow) -> Table:
    """Returns the global norm of all epochs."""
    rows, note = evenly(
        [
            (
                f"{epoch:,}",
                f"{record.steps:,}",
                number_text(record.norm),
                number_text(record.norm_max),
                number_text(record.norm_last),
                f"{record.nonfinite_steps:,}",
                format_bytes(record.own_bytes),
            )
            for epoch, record in zip(flow.epochs, records, strict=True)
        ]
    )
    head = ("epoch", "steps", "mean norm", "largest", "last", "nonfinite steps")
    return Table(
        "global L2 norm of the gradient",
        (*head, "monitor's own"),
        tuple(rows),
        texts=0,
        note=note,
    )


def variable_table(flow: GradientFlow) -> Table:
    """Returns the gradient statistics of all variables over the whole run."""
    rows = [
        (
            path,
            *(number_text(value) for value in _ends(flow.measures["norm"][row])),
            number_text(np.fmax.reduce(flow.measures["max_abs"][row])),
            number_text(_last(flow.measures["update_ratio"][row])),
            share_text(_last(flow.measures["zero_fraction"][row])),
            f"{np.nansum(flow.measures['nonfinite'][row]):,.0f}",
        )
        for row, path in enumerate(flow.paths)
    ]
    rows_shown, note = evenly(rows, most=1000)
    head = ("variable", "norm, first epoch", "norm, last epoch", "largest entry")
    return Table(
        "gradient of every variable, over the sampled steps",
        (*head, "update ratio, last", "zeros, last", "nonfinite entries"),
        tuple(rows_shown),
        note=note,
    )


def _ends(row: np.ndarray) -> tuple[float, float]:
    values = row[~np.isnan(row)]
    return (
        (float(values[0]), float(values[-1])) if len(values) else (math.nan, math.nan)
    )


def _last(row: np.ndarray) -> float:
    return _ends(row)[1]
