"""Whether ranges are of tensors of a model."""

from collections.abc import Collection
from typing import Any

from kerasmem.compression.quantize.activations.calls import flatten
from kerasmem.compression.quantize.given_ranges import NAMELESS, Ranges
from kerasmem.compression.quantize.static.split import split
from kerasmem.errors import ModelError


def check_known(model: Any, ranges: Ranges, places: Collection[str] = ()) -> None:
    """Raise unless all ranges are of tensors of a model.

    An Input that was given no name has another one in each copy of a model; its range
    is not looked at.

    Args:
        model: a model with a graph.
        ranges: the ranges.
        places: names that are known to be in it.

    Raises:
        ModelError: if one is not.
    """
    unknown = [name for name in ranges if not NAMELESS.fullmatch(name)]
    for names in (
        lambda: places,
        lambda: flatten(model).names,
        lambda: flatten(model, split).names,
    ):
        if unknown:
            known = set(names())
            unknown = [name for name in unknown if name not in known]
    if unknown:
        raise ModelError(
            f"{len(unknown)} of {len(ranges)} ranges are of no tensor of the model "
            f"{model.name!r}. Expected: those of an earlier training of this model. "
            f"Received: ranges of {', '.join(map(repr, unknown[:3]))}. Next: leave "
            "them out, and make a new QuantizationAware for each model."
        )
