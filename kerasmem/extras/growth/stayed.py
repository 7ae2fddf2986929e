"""Groups objects that stay in memory by the names that hold them."""

import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from types import FunctionType
from typing import Any
from weakref import ref

import keras

from kerasmem.graph.values import nbytes
from kerasmem.memory.census import kind_name
from kerasmem.memory.held_arrays import array_bytes, is_array
from kerasmem.memory.references import Link, names

OF_KERAS = (
    keras.layers.Layer,  # includes models
    keras.Variable,
    keras.optimizers.Optimizer,
    keras.callbacks.Callback,
    keras.metrics.Metric,
    keras.KerasTensor,
)
"""Types of objects that Keras creates."""

NO_NAME = "no name of the program: Keras, the framework or native code"
"""Holder of an object that no variable leads to."""

_WAYS = {
    "callback": keras.callbacks.Callback,
    "closure": FunctionType,
    "optimizer": keras.optimizers.Optimizer,
}


@dataclass(frozen=True)
class Stayed:
    """Objects that stay in memory, and the name through which the program holds them.

    Args:
        held_by: Name of the holder, such as `"search.trials[...].model"`. `[...]`
            replaces several indices.
        where: `"a local of run()"`, or the module of the variable.
        kinds: Number of objects by type, including nested objects.
        number: Number of objects that the name refers to directly.
        array_bytes: Bytes of the arrays and weights of these objects.
        through: Types on the reference path: `"callback"`, `"closure"`, `"optimizer"`.
        is_own: Whether the variable belongs to the program, not to a library.
        models: Number of models, without nested models.
        arrays: Number of arrays and tensors that are not Keras objects.
        weight_bytes: Bytes of the models' weights in `array_bytes`.
    """

    held_by: str
    where: str
    kinds: Mapping[str, int]
    number: int
    array_bytes: int
    through: frozenset[str]
    is_own: bool
    models: int
    arrays: int
    weight_bytes: int

    def __str__(self) -> str:
        return f"{self.held_by} ({self.where})" if self.where else self.held_by


def stayed(references: Iterable["ref[Any]"]) -> list[Stayed]:
    """Return the living objects grouped by holder, largest first."""
    living = {id(each): each for r in references if (each := r()) is not None}
    links = names([*living.values()])
    groups: dict[tuple[str, str], list[_Held]] = defaultdict(list)
    for key, one in living.items():
        link = links.get(key) or Link(one, None, NO_NAME, is_own=False)
        owner = _owner(link, living)
        groups[_pattern(owner), owner.where].append((link, owner))
    holders = [_group(members, living) for members in groups.values()]
    return sorted(holders, key=lambda each: (-each.array_bytes, each.held_by))


_Held = tuple[Link, Link]
"""Link of an object, and of the first new object on the path to it."""


def _group(held: Sequence[_Held], new: Mapping[int, Any]) -> Stayed:
    owners = {id(owner.object): owner for _, owner in held}
    first = held[0][1]
    # An array that contains another array counts once.
    objects = [link.object for link, _ in held if not any(map(_size, _above(link)))]
    models = [
        link.object
        for link, _ in held
        if isinstance(link.object, keras.Model)
        and not any(isinstance(x, keras.Model) and id(x) in new for x in _above(link))
    ]
    weights = {id(weight) for model in models for weight in model.weights}
    kinds = Counter(kind_name(type(link.object)) for link, _ in held)
    return Stayed(
        held_by=str(first) if len(owners) == 1 else _pattern(first),
        where=first.where,
        kinds=dict(kinds.most_common()),
        number=len(owners),
        array_bytes=sum(map(_size, objects)),
        through=frozenset(way for link in owners.values() for way in _through(link)),
        is_own=first.is_own,
        models=len(models),
        arrays=sum(not isinstance(one, OF_KERAS) for one in objects),
        weight_bytes=sum(_size(one) for one in objects if id(one) in weights),
    )


def _owner(link: Link, new: Mapping[int, Any]) -> Link:
    links = link.chain()
    first = next(n for n, each in enumerate(links) if id(each.object) in new)
    is_callback = isinstance(links[first].object, keras.callbacks.Callback)
    below = (isinstance(each.object, OF_KERAS) for each in links[first + 1 :])
    return link if is_callback and not any(below) else links[first]


def _through(link: Link) -> set[str]:
    objects = [*_above(link), link.object] if link.where else []
    return {n for n, kind in _WAYS.items() if any(isinstance(x, kind) for x in objects)}


def _above(link: Link) -> list[Any]:
    return [each.object for each in link.chain()[:-1]]


def _size(one: Any) -> int:
    if isinstance(one, keras.Variable):
        return nbytes(one)
    return array_bytes(one) if is_array(one) else 0


def _pattern(link: Link) -> str:
    return re.sub(r"\[\d+\]", "[...]", str(link))
