"""Objects that stayed, grouped by the names that hold them."""

import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
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
    references: Sequence["ref[Any]"], made_at: Mapping[int, str]
) -> list[Stayed]:
    """Return objects that live by who holds them, those with most bytes first.

    Args:
        references: to the objects.
        made_at: file and line that made an object, by identity of its reference.
    """
    living = {id(each): r for r in references if (each := r()) is not None}
    objects = [r() for r in living.values()]
    links = names(objects)
    groups: dict[tuple[str, str], _Group] = {}
    for one in objects:
        link = links.get(id(one))
        owner = _owner(link, living) if link is not None else None
        key = (_pattern(owner), owner.root.where) if owner else (NO_NAME, "")
        group = groups.setdefault(key, _Group())
        group.add(one, owner, is_counted=link is None or not _in_array(link))
        if isinstance(one, keras.Model) and not (link and _in_model(link, living)):
            group.add_model(one)
        first = owner.object if owner else one
        group.made_at = group.made_at or made_at.get(id(living[id(first)]))
    found = [group.stayed(where) for (_, where), group in groups.items()]
    return sorted(found, key=lambda each: (-each.array_bytes, each.held_by))


class _Group:
    """Objects that one name holds."""

    def __init__(self) -> None:
        self._owners: dict[int, Link] = {}
        self._kinds: Counter[str] = Counter()
        self._bytes = self._models = self._arrays = 0
        self._variables: dict[int, int] = {}
        self._weights: set[int] = set()
        self.made_at: str | None = None

    def add(self, one: Any, owner: Link | None, *, is_counted: bool) -> None:
        if owner is not None:
            self._owners.setdefault(id(owner.object), owner)
        self._kinds[kind_name(type(one))] += 1
        self._arrays += is_counted and not isinstance(one, OF_KERAS)
        if is_counted:
            self._bytes += _size(one)
            if isinstance(one, keras.Variable):
                self._variables[id(one)] = _size(one)

    def add_model(self, model: keras.Model) -> None:
        self._models += 1
        self._weights.update(map(id, model.weights))

    def stayed(self, where: str) -> Stayed:
        owners = list(self._owners.values())
        text = NO_NAME
        if owners:
            text = str(owners[0]) if len(owners) == 1 else _pattern(owners[0])
        kinds = dict(self._kinds.most_common())
        number = len(owners) or sum(kinds.values())
        through = {w for link in owners for w in _through(link)}
        return Stayed(
            held_by=text,
            where=where,
            kinds=kinds,
            number=number,
            array_bytes=self._bytes,
            made_at=self.made_at,
            through=frozenset(through),
            is_own=bool(owners) and owners[0].root.is_own,
            models=self._models,
            arrays=self._arrays,
            weight_bytes=sum(
                size for key, size in self._variables.items() if key in self._weights
            ),
        )


def _owner(link: Link, new: Mapping[int, Any]) -> Link:
    """Return the first new object on the way to one; an array in a callback is one."""
    links = link.chain()
    first = next(n for n, each in enumerate(links) if id(each.object) in new)
    is_callback = isinstance(links[first].object, keras.callbacks.Callback)
    below = (isinstance(each.object, OF_KERAS) for each in links[first + 1 :])
    return link if is_callback and not any(below) else links[first]


_WAYS = (
    ("callback", keras.callbacks.Callback),
    ("closure", FunctionType),
    ("optimizer", keras.optimizers.Optimizer),
)


def _through(link: Link) -> Iterator[str]:
    for each in link.chain():
        for name, kind in _WAYS:
            if isinstance(each.object, kind):
                yield name


def _in_array(link: Link) -> bool:
    """Return whether another array or variable is on the way: its bytes count once."""
    above = (each.object for each in link.chain()[:-1])
    return any(isinstance(one, keras.Variable) or _size(one) for one in above)


def _in_model(link: Link, new: Mapping[int, Any]) -> bool:
    above = (each.object for each in link.chain()[:-1])
    return any(isinstance(one, keras.Model) and id(one) in new for one in above)


def _size(one: Any) -> int:
    if isinstance(one, keras.Variable):
        return nbytes(one)
    return array_bytes(one) if is_array(one) else 0


def _pattern(link: Link) -> str:
    return re.sub(r"\[\d+\]", "[...]", str(link))
