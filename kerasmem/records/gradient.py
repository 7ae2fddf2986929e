"""What the gradients of one epoch looked like."""

import json
import math
from dataclasses import asdict, dataclass
from typing import Any

from kerasmem.records.plain import OrNaN, read_json, record_from


@dataclass(frozen=True)
class VariableGradient:
    """Statistics of one variable's gradient over the sampled steps of an epoch.

    Args:
        path: path of the variable, such as `"dense/kernel"`.
        steps: number of sampled steps.
        norm: mean of the L2 norm over the sampled steps with a finite one; NaN if there
            is none.
        norm_max: largest of these norms, NaN if there is none.
        norm_last: the norm in the last sampled step, NaN if it was not finite.
        max_abs: largest absolute value in the sampled steps with a finite norm.
        zero_fraction: mean share of entries that are exactly zero, 0 to 1.
        nonfinite: number of NaN or infinite entries seen.
        update_ratio: mean of the L2 norm of an update over that of the variable before
            it, over the updates of the epoch that follow a sampled one, and a fit's
            first. Of a large variable evenly spaced entries are looked at, which the
            sparse updates of an embedding may miss. None if unknown.
        gradient_bytes: bytes of its gradient, as the backend holds it.
    """

    path: str
    steps: int
    norm: OrNaN
    max_abs: float
    zero_fraction: float
    nonfinite: int
    norm_max: OrNaN = math.nan
    norm_last: OrNaN = math.nan
    update_ratio: float | None = None
    gradient_bytes: int = 0


@dataclass(frozen=True)
class GradientRecord:
    """One epoch of a `GradientMonitor`.

    Args:
        epoch: index of the epoch, from 0.
        steps: number of updates that the optimizer made; a step that loss scaling
            skipped is none.
        norm: mean of the global L2 norm over the updates with a finite one; NaN if
            there is none.
        norm_max: largest finite global L2 norm, NaN if there is none.
        nonfinite_steps: number of steps whose gradient held NaN or infinity, those
            that loss scaling skipped included.
        variables: per-variable statistics; empty with `per_variable=False`.
        norm_last: global L2 norm of the last update, NaN if it was not finite.
        sampled_steps: numbers of the updates with per-variable statistics, from 0 at
            the epoch's begin.
        gradient_bytes: bytes of all gradients of one step together.
        own_bytes: bytes that the monitor's own state takes on the device.
        time: seconds since 1970 (UTC).
    """

    epoch: int
    steps: int
    norm: OrNaN
    norm_max: OrNaN
    nonfinite_steps: int
    variables: tuple[VariableGradient, ...] = ()
    norm_last: OrNaN = math.nan
    sampled_steps: tuple[int, ...] = ()
    gradient_bytes: int = 0
    own_bytes: int = 0
    time: float = 0.0

    def to_json(self) -> str:
        """Return the record as one line of JSON, with null for NaN."""
        return json.dumps(_without_nan(asdict(self)), allow_nan=False)

    @classmethod
    def from_json(cls, line: str) -> "GradientRecord":
        """Return the record that `to_json` made `line` of."""
        return record_from(cls, read_json(line))


_NORMS = ("norm", "norm_max", "norm_last")  # NaN where there is none; JSON has no NaN


def _without_nan(fields: dict[str, Any]) -> dict[str, Any]:
    rows = {"variables": [_without_nan(row) for row in fields.get("variables", ())]}
    missing = {name: None for name in _NORMS if math.isnan(fields[name])}
    return fields | missing | (rows if "variables" in fields else {})
