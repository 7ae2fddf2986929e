"""A run's gradients as tables."""

import math
from collections.abc import Sequence

import numpy as np

from kerasmem.records import GradientRecord
from kerasmem.report.page.table import MISSING, Table, evenly, share_text
from kerasmem.report.run.gradients import GradientFlow
from kerasmem.units import format_bytes


def norm_table(records: Sequence[GradientRecord], flow: GradientFlow) -> Table:
    """Return the global norm of every epoch."""
    rows, note = evenly(
        [
            (
                f"{epoch:,}",
                f"{record.steps:,}",
                _number(record.norm),
                _number(record.norm_max),
                _number(record.norm_last),
                f"{record.nonfinite_steps:,}",
                format_bytes(record.gradient_bytes),
                format_bytes(record.own_bytes),
            )
            for epoch, record in zip(flow.epochs, records, strict=True)
        ]
    )
    head = ("epoch", "steps", "mean norm", "largest", "last", "nonfinite steps")
    return Table(
        "global L2 norm of the gradient",
        (*head, "gradients", "monitor's own"),
        tuple(rows),
        texts=0,
        note=note,
    )


def variable_table(flow: GradientFlow) -> Table:
    """Return every variable's gradient over the whole run, in the model's order."""
    rows = [
        (
            path,
            *(_number(value) for value in _ends(flow.measures["norm"][row])),
            _number(_largest(flow.measures["max_abs"][row])),
            _number(_last(flow.measures["update_ratio"][row])),
            _share(_last(flow.measures["zero_fraction"][row])),
            f"{np.nansum(flow.measures['nonfinite'][row]):,.0f}",
        )
        for row, path in enumerate(flow.paths)
    ]
    shown, note = evenly(rows, most=1000)
    head = ("variable", "norm, first epoch", "norm, last epoch", "largest entry")
    return Table(
        "gradient of every variable, over the sampled steps",
        (*head, "update ratio, last", "zeros, last", "nonfinite entries"),
        tuple(shown),
        note=note,
    )


def _ends(row: np.ndarray) -> tuple[float, float]:
    known = row[~np.isnan(row)]
    return (float(known[0]), float(known[-1])) if len(known) else (math.nan, math.nan)


def _last(row: np.ndarray) -> float:
    return _ends(row)[1]


def _largest(row: np.ndarray) -> float:
    known = row[~np.isnan(row)]
    return float(known.max()) if len(known) else math.nan


def _number(value: float) -> str:
    return f"{value:.3g}" if math.isfinite(value) else MISSING


def _share(value: float) -> str:
    return share_text(value) if math.isfinite(value) else MISSING
