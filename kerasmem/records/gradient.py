"""What the gradients of one epoch looked like."""

import json
import math
from dataclasses import asdict, dataclass
from typing import Any


@dataclass(frozen=True)
class VariableGradient:
    """Statistics of one variable's gradient over the sampled steps of an epoch.

    Args:
        path: path of the variable, such as `"dense/kernel"`.
        steps: number of sampled steps.
        norm: mean of the L2 norm over the sampled steps, of the finite entries.
        max_abs: largest finite absolute value seen.
        zero_fraction: mean share of entries that are exactly zero, 0 to 1.
        nonfinite: number of NaN or infinite entries seen.
    """

    path: str
    steps: int
    norm: float
    max_abs: float
    zero_fraction: float
    nonfinite: int


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
    """

    epoch: int
    steps: int
    norm: float
    norm_max: float
    nonfinite_steps: int
    variables: tuple[VariableGradient, ...] = ()

    def to_json(self) -> str:
        """Return the record as one line of JSON, with null for NaN."""
        fields = asdict(self)
        for name in ("norm", "norm_max"):
            fields[name] = None if math.isnan(fields[name]) else fields[name]
        return json.dumps(fields)

    @classmethod
    def from_json(cls, line: str) -> "GradientRecord":
        """Return the record that `to_json` made `line` of."""
        fields: dict[str, Any] = json.loads(line)
        for name in ("norm", "norm_max"):
            fields[name] = math.nan if fields[name] is None else fields[name]
        variables = tuple(VariableGradient(**row) for row in fields.pop("variables"))
        return cls(**fields, variables=variables)
