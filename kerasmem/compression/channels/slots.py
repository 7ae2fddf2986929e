"""The optimizer of a smaller model, with the moments of the weights that stay."""

from collections.abc import Sequence
from typing import Any

from kerasmem.graph.channels import Kept
from kerasmem.graph.clone import compile_settings
from kerasmem.graph.values import to_numpy


def take_along(
    model: Any, smaller: Any, pairs: Sequence[tuple[Any, Any]], kept: Kept
) -> None:
    """Compile the smaller model as the original, and continue its optimizer.

    Slots have the shape of their weight and lose the same channels. Slots of another
    shape (factored or quantized moments) are taken along if their shape stays, and
    start anew if not.
    """
    settings = compile_settings(model)
    if settings is None:
        return
    smaller.compile(**settings)
    if not model.optimizer.built:
        return
    smaller.optimizer.build(smaller.trainable_variables)
    weights = {_slot_name(before): before for before, _ in pairs}
    for old, new in zip(
        model.optimizer.variables, smaller.optimizer.variables, strict=True
    ):
        value = to_numpy(old)
        weight = _weight_of(old, weights)
        if weight is not None and tuple(weight.shape) == tuple(old.shape):
            value = kept.gather(weight, value)
        if value.shape == tuple(new.shape):
            new.assign(value)


def _slot_name(weight: Any) -> str:
    # How Keras names a slot: the weight's path, then what the slot is.
    return weight.path.replace("/", "_") + "_"


def _weight_of(slot: Any, weights: dict[str, Any]) -> Any:
    matching = [name for name in weights if slot.name.startswith(name)]
    return weights[max(matching, key=len)] if matching else None
