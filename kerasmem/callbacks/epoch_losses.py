"""The losses of an epoch, as Keras tells them."""

import math
from collections.abc import Mapping
from typing import Any


def epoch_losses(logs: Mapping[str, Any] | None) -> dict[str, float]:
    """Return those of `"loss"` and `"val_loss"` that are in `logs` and finite."""
    told = {} if logs is None else logs
    known = {name: float(told[name]) for name in ("loss", "val_loss") if name in told}
    return {name: value for name, value in known.items() if math.isfinite(value)}
