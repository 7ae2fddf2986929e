"""How many Python objects there are, of which kinds, and with how many bytes."""

import gc
import sys
from collections import Counter
from collections.abc import Iterator
from contextlib import suppress
from itertools import compress, filterfalse
from typing import Any, NamedTuple

import keras
import numpy as np

from kerasmem.graph.values import nbytes

_CHUNK = 20_000
_MOST_OBJECTS = 5_000_000
_PLAIN = frozenset((dict, tuple))
_HIDDEN = ("src", "python")
_LEAST_BYTES = 64 * 1024.0
_LEAST_NUMBER = 0.9  # an epoch, of kinds that are not Python's own
_MANY = 100.0


class Census(NamedTuple):
    """Objects by kind.

    Args:
        number: of objects by kind.
        nbytes: of arrays and tensors by kind.
        arrays: identity and bytes of each of them: one that takes the place of another
            may have its identity.
    """

    number: Counter[str]
    nbytes: Counter[str]
    arrays: frozenset[tuple[int, int]]


class Growth(NamedTuple):
    """How much a kind grows in an epoch: in objects, and in bytes where known."""

    kind: str
    number: float
    nbytes: float


def object_count() -> int:
    """Return the number of blocks that Python's allocator has handed out.

    About one per object. Takes microseconds.
    """
    return sys.getallocatedblocks()


def census() -> Census:
    """Return the objects by kind.

    Of those that the garbage collector knows, and of the arrays that these hold: not
    of numbers and text, nor of what kerasmem itself keeps. Takes some tenths of a
    second; of very many objects the newest five million are counted.
    """
    arrays = {id(each): each for each in _arrays(gc.get_objects()[-_MOST_OBJECTS:])}
    sizes: Counter[str] = Counter()
    known: set[tuple[int, int]] = set()
    for key, each in arrays.items():
        known.add((key, size := _array_bytes(each)))
        sizes[kind_name(type(each))] += size
    # Now: a tensor whose size was asked for may keep an object of its shape.
    objects = gc.get_objects()[-_MOST_OBJECTS:]
    number: Counter[str] = Counter()
    for kind, count in Counter(map(type, objects)).items():
        if not is_own(kind):
            number[kind_name(kind)] += count
    number |= Counter(kind_name(type(each)) for each in arrays.values())
    return Census(number, sizes, frozenset(known))


def kind_name(kind: type) -> str:
    """Return the name of a type, without the rooms in which its package hides it.

    Example:
        >>> kind_name(dict), kind_name(keras.layers.Dense)
        ('dict', 'keras.Dense')
    """
    parts = _module(kind).split(".")
    hidden = (i for i, part in enumerate(parts) if part in _HIDDEN or part[:1] == "_")
    module = ".".join(parts[: next(hidden, len(parts))])
    return f"{module}.{kind.__qualname__}".removeprefix("builtins.").removeprefix(".")


def is_own(kind: type) -> bool:
    """Return True for what kerasmem itself keeps."""
    return _module(kind).startswith("kerasmem.")


def _module(kind: type) -> str:
    module = kind.__module__
    return module if isinstance(module, str) else ""  # some classes give it a property


def grown(
    before: Census, after: Census, *, epochs: int, blocks: float = 0.0
) -> list[Growth]:
    """Return the at most three kinds that grew most, by bytes, then by number.

    Args:
        before: an earlier census.
        after: a later one.
        epochs: number of epochs between them.
        blocks: growth of all objects in an epoch: of Python's own kinds only those
            with a tenth of it, and a hundred, are named.
    """
    rates = [
        Growth(
            kind,
            (after.number[kind] - before.number[kind]) / epochs,
            (after.nbytes[kind] - before.nbytes[kind]) / epochs,
        )
        for kind in after.number
    ]
    of_size = [one for one in rates if one.nbytes >= _LEAST_BYTES]
    few = _MANY if of_size else _LEAST_NUMBER  # beside megabytes a few say nothing

    def is_many(one: Growth) -> bool:
        package = one.kind.partition(".")[0]
        is_pythons = package == one.kind or package in sys.stdlib_module_names
        return one.number >= (max(_MANY, blocks / 10) if is_pythons else few)

    found = [one for one in rates if one not in of_size and is_many(one)]
    of_size.sort(key=lambda one: -one.nbytes)
    return [*of_size, *sorted(found, key=lambda one: -one.number)][:3]


def newest(kind: str, number: int, before: Census) -> list[Any]:
    """Return some of the latest objects of a kind, three at most; arrays the largest.

    Call it after a garbage collection, which leaves objects in the order of their age.

    Args:
        kind: one of those that `grown` named.
        number: how many came since `before`.
        before: an earlier census.
    """
    objects = gc.get_objects()[-_MOST_OBJECTS:]
    arrays = {id(each): each for each in _arrays(objects)}.values()
    of_kind = ((_array_bytes(each), each) for each in _of_kind([*arrays], kind))
    new = [(n, each) for n, each in of_kind if (id(each), n) not in before.arrays]
    found = [each for _, each in sorted(new, key=lambda one: one[0])]
    found = found or _of_kind(objects, kind)
    late = found[-max(1, number) :]
    return late[:: -(-len(late) // 3) or 1]


def _of_kind(objects: list[Any], kind: str) -> list[Any]:
    kinds = {each for each in set(map(type, objects)) if kind_name(each) == kind}
    return [each for each in objects if type(each) in kinds]


def held_by(objects: list[Any]) -> Iterator[tuple[list[Any], list[type]]]:
    """Yield what objects hold with its types, part by part, some of it repeatedly.

    What is held by containers that are `untracked` is yielded too.

    Args:
        objects: some that the garbage collector knows.
    """
    for start in range(0, len(objects), _CHUNK):
        held = gc.get_referents(*objects[start : start + _CHUNK])
        while held:
            types = list(map(type, held))
            yield held, types
            held = gc.get_referents(*untracked(held, types))


def untracked(held: list[Any], types: list[type]) -> list[Any]:
    """Return the dictionaries and tuples that the garbage collector does not know.

    They hold nothing but arrays, numbers, text or others of their kind.

    Args:
        held: any objects.
        types: the type of each.
    """
    plain = compress(held, map(_PLAIN.__contains__, types))
    return [*filterfalse(gc.is_tracked, plain)]


def _arrays(objects: list[Any]) -> Iterator[Any]:
    """Yield the arrays and tensors that some objects hold; one may come repeatedly."""
    known: dict[type, bool] = {}
    for held, types in held_by(objects):
        kinds = set(types)
        for kind in kinds - known.keys():
            known[kind] = (
                _has_size(kind)
                and not is_own(kind)
                and _is_array(held[types.index(kind)])
            )
        arrays = frozenset(kind for kind in kinds if known[kind])
        if arrays:
            yield from compress(held, map(arrays.__contains__, types))


def _has_size(kind: type) -> bool:
    # Of the type: to ask the object wakes lazy modules and breaks at dead proxies. A
    # symbolic tensor has no value, and would make an object of its shape when asked.
    names = frozenset().union(*map(vars, kind.__mro__))
    return {"shape", "dtype"} <= names and not names.isdisjoint({"numpy", "nbytes"})


def _is_array(one: Any) -> bool:
    return isinstance(one, np.ndarray) or keras.ops.is_tensor(one)


def _array_bytes(each: Any) -> int:
    if isinstance(each, np.ndarray):
        return each.nbytes if each.base is None else 0
    with suppress(TypeError, ValueError):  # symbolic, or of no type that has a size
        return nbytes(each)
    return 0
