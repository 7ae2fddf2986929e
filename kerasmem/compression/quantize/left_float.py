"""Weights that a quantization left float, though it may have been meant for them."""

import warnings
from collections.abc import Sequence

from kerasmem.errors import KerasMemWarning
from kerasmem.graph.layers import Weight
from kerasmem.records import WeightChange
from kerasmem.units import format_bytes

NO_KERNEL = "is no kernel or embedding table"
UNREAD = "has two axes or more, and nothing shows that its layer multiplies with it"
LISTED = "is kept in a list, where no layer can be given another weight"

_MOST, _NAMED = 0.1, 3


def why_no_kernel(weight: Weight) -> str:
    """Return why a weight that is not known to be a kernel is left alone."""
    axes = [size for size in weight.variable.shape if size > 1]
    return NO_KERNEL if len(axes) < 2 or "bias" in weight.variable.name else UNREAD


def warn_if_left_float(changes: Sequence[WeightChange], model_bytes: int) -> None:
    """Warn if more than a tenth of a model stays float where nobody asked for it.

    Vectors do not count, nor what `include` and `exclude` were to decide.

    Args:
        changes: what became of the weights.
        model_bytes: bytes of all weights in RAM before.
    """
    stored = {c.weight for c in changes if c.after_bytes < c.before_bytes}
    left = {
        change.weight: change.after_bytes
        for change in changes
        if change.detail in (UNREAD, LISTED) and change.weight not in stored
    }
    total = sum(left.values())
    if total <= _MOST * model_bytes:
        return
    largest = sorted(left, key=lambda weight: -left[weight])
    named = [f"{name} ({format_bytes(left[name])})" for name in largest[:_NAMED]]
    rest = f" and {len(left) - _NAMED} more" if len(left) > _NAMED else ""
    warnings.warn(
        f"{total / model_bytes:.0%} of the model's bytes stay float: "
        f"{', '.join(named)}{rest}. Next: name in include= of Quantize those that are "
        "to be stored in fewer bits (their last axis is that of the channels), in "
        "exclude= those that are to stay. `changes` tells why each was left alone.",
        KerasMemWarning,
        stacklevel=3,
    )
