"""What the gradients of an epoch looked like, as a whole and by variable."""

import math
from dataclasses import dataclass

from kerasmem.records.plain import JsonRecord, OrNaN


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
class GradientRecord(JsonRecord):
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
        norm_first: global L2 norm of the first update, NaN if it was not finite.
        loss: the epoch's loss in `logs`, None without one that is finite.
        val_loss: the same of its validation.
        learning_rate: that of the last update; None if unknown.
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
    norm_first: OrNaN = math.nan
    loss: float | None = None
    val_loss: float | None = None
    learning_rate: float | None = None
