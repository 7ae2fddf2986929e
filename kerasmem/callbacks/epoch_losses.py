"""The losses of an epoch, as Keras tells them."""

import math
from collections.abc import Mapping
from typing import Any


def epoch_losses(logs: Mapping[str, Any] | None) -> dict[str, float]:
    """Return those of `"loss"` and `"val_loss"` that are in `logs` and finite."""
    known = logs or {}
    losses = {
        name: float(known[name]) for name in ("loss", "val_loss") if name in known
    }
    return {name: value for name, value in losses.items() if math.isfinite(value)}
