"""Objects that stayed, grouped by the names that hold them."""

import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from types import FunctionType
from typing import Any
from weakref import ref

import keras

from kerasmem.extras.growth.names import Link, names
from kerasmem.extras.growth.snapshot import OF_KERAS
from kerasmem.graph.values import nbytes
from kerasmem.memory.census import kind_name
from kerasmem.memory.held_arrays import array_bytes, is_array
from kerasmem.units import format_bytes

NO_NAME = "no name of the program: Keras, the framework or native code"
"""What holds an object that no variable leads to."""


@dataclass(frozen=True)
class Stayed:
    """Objects that stayed, and by which name the program holds them.

    Args:
        held_by: the name, such as `"search.trials[...].model"`; an index is left out
            where several objects differ in nothing else.
        where: `"a local of run()"`, or the module of the variable.
        kinds: numbers of objects by kind, those inside of them included.
        number: of objects that the name itself leads to.
        array_bytes: bytes of the arrays and weights that they hold.
        made_at: file and line that made the first of them; None where that is unknown.
        through: what is on the way to them: `"callback"`, `"closure"`, `"optimizer"`.
        is_own: whether a variable of the program holds them, not one of a library.
        models: number of models among them, without models inside of other models.
        arrays: number of arrays and tensors among them that are no object of Keras.
        weight_bytes: bytes of `array_bytes` that are weights of these models.
    """

    held_by: str
    where: str
    kinds: Mapping[str, int]
    number: int
    array_bytes: int
    made_at: str | None
    through: frozenset[str]
    is_own: bool
    models: int
    arrays: int
    weight_bytes: int

    @property
    def line(self) -> str:
        """All of it as one line of a table."""
        kinds = ", ".join(f"{number} {kind}" for kind, number in self.kinds.items())
        where = f" ({self.where})" if self.where else ""
        made = f", made at {self.made_at}" if self.made_at else ""
        size = format_bytes(self.array_bytes)
        return f"{size:>10}  {self.held_by}{where}: {kinds}{made}"


def stayed(
    references: Iterable["ref[Any]"], made_at: Mapping[int, str]
) -> list[Stayed]:
    """Return objects that live by who holds them, those with most bytes first.

    Args:
        references: to the objects.
        made_at: file and line that made an object, by its identity.
    """
    living = {id(each): each for r in references if (each := r()) is not None}
    links = names([*living.values()])
    groups: dict[tuple[str, str], list[_Held]] = defaultdict(list)
    for key, one in living.items():
        link = links.get(key) or Link(one, None, NO_NAME, is_own=False)
        owner = _owner(link, living)
        groups[_pattern(owner), owner.root.where].append((link, owner))
    new = {key for key, one in living.items() if isinstance(one, keras.Model)}
    found = [_group(held, new, made_at) for held in groups.values()]
    return sorted(found, key=lambda each: (-each.array_bytes, each.held_by))


_Held = tuple[Link, Link]
"""How the program reaches an object, and the first new one on the way to it."""


def _group(held: Sequence[_Held], new: set[int], made_at: Mapping[int, str]) -> Stayed:
    """Return the objects that one name holds as one line; `new` are all models."""
    owners = {id(owner.object): owner for _, owner in held}
    first = held[0][1]
    objects = [link.object for link, _ in held]
    # Bytes of an array that is on the way to another count once.
    counted = [link.object for link, _ in held if not any(map(_size, _above(link)))]
    models = [
        link.object
        for link, _ in held
        if id(link.object) in new and new.isdisjoint(map(id, _above(link)))
    ]
    weights = {id(weight) for model in models for weight in model.weights}
    return Stayed(
        held_by=str(first) if len(owners) == 1 else _pattern(first),
        where=first.root.where,
        kinds=dict(Counter(kind_name(type(one)) for one in objects).most_common()),
        number=len(owners),
        array_bytes=sum(map(_size, counted)),
        made_at=next((made_at[key] for key in owners if key in made_at), None),
        through=frozenset(way for link in owners.values() for way in _through(link)),
        is_own=first.root.is_own,
        models=len(models),
        arrays=sum(not isinstance(one, OF_KERAS) for one in counted),
        weight_bytes=sum(_size(one) for one in counted if id(one) in weights),
    )


def _owner(link: Link, new: Mapping[int, Any]) -> Link:
    """Return the first new object on the way to one; an array in a callback is one."""
    links = link.chain()
    first = next(n for n, each in enumerate(links) if id(each.object) in new)
    is_callback = isinstance(links[first].object, keras.callbacks.Callback)
    below = (isinstance(each.object, OF_KERAS) for each in links[first + 1 :])
    return link if is_callback and not any(below) else links[first]


_WAYS = {
    "callback": keras.callbacks.Callback,
    "closure": FunctionType,
    "optimizer": keras.optimizers.Optimizer,
}


def _through(link: Link) -> set[str]:
    objects = [*_above(link), link.object] if link.root.where else []
    return {n for n, kind in _WAYS.items() if any(isinstance(x, kind) for x in objects)}


def _above(link: Link) -> list[Any]:
    return [each.object for each in link.chain()[:-1]]


def _size(one: Any) -> int:
    if isinstance(one, keras.Variable):
        return nbytes(one)
    return array_bytes(one) if is_array(one) else 0


def _pattern(link: Link) -> str:
    return re.sub(r"\[\d+\]", "[...]", str(link))
