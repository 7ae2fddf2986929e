"""The optimizer of a smaller model, with the moments of the weights that stay."""

from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from itertools import islice
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
    before = {id(after): before for before, after in pairs}
    trained = [before.get(id(after)) for after in smaller.trainable_variables]
    slots = model.optimizer.variables
    owners = _owners(slots, [weight for weight in trained if weight is not None])
    for old, weight, new in zip(
        slots, owners, smaller.optimizer.variables, strict=True
    ):
        value = to_numpy(old)
        if weight is not None:
            value = kept.gather(weight, value)
        if value.shape == tuple(new.shape):
            new.assign(value)


def _slot_name(weight: Any) -> str:
    # How Keras names a slot: the weight's path, then what the slot is.
    return weight.path.replace("/", "_") + "_"


def _owners(slots: Sequence[Any], trained: Sequence[Any]) -> Iterator[Any]:
    """Yield for every slot the weight whose shape and name it has, None without one.

    Weights with one path have slots of one name, in the order of the weights.
    """
    alike: dict[str, list[Any]] = defaultdict(list)
    for weight in trained:
        alike[_slot_name(weight)].append(weight)
    seen: Counter[tuple[str, tuple[int, ...]]] = Counter()
    for slot in slots:
        shape = tuple(slot.shape)
        name = max(filter(slot.name.startswith, alike), key=len, default="")
        fitting = [w for w in alike.get(name, ()) if tuple(w.shape) == shape]
        yield next(islice(fitting, seen[slot.name, shape], None), None)
        seen[slot.name, shape] += 1
