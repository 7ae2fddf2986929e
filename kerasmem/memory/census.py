"""Counts Python objects by type and size."""

import gc
import sys
from collections import Counter
from typing import Any, NamedTuple

from kerasmem.memory.held_arrays import (
    array_bytes,
    arrays_of,
    attribute,
    is_own,
    module_of,
)

_MOST_OBJECTS = 5_000_000
_HIDDEN = ("src", "python")
_LEAST_BYTES = 64 * 1024.0
_LEAST_NUMBER = 0.9  # Per epoch, for types outside of the standard library.
_MANY = 100.0


class Census(NamedTuple):
    """Counts of objects by type name.

    Args:
        number: Number of objects by type name.
        nbytes: Bytes of arrays and tensors by type name.
        arrays: Identity and bytes of each array. Python may reuse an identity.
    """

    number: Counter[str]
    nbytes: Counter[str]
    arrays: frozenset[tuple[int, int]]


class Growth(NamedTuple):
    """Growth of a type per epoch, in objects and in bytes of arrays."""

    kind: str
    number: float
    nbytes: float


def object_count() -> int:
    """Return the number of blocks from Python's allocator, about one per object.

    The call takes microseconds.
    """
    return sys.getallocatedblocks()


def census() -> Census:
    """Count the objects tracked by the garbage collector, and the arrays they hold.

    Numbers, text and objects of kerasmem are excluded. A census takes some tenths of a
    second and is limited to the newest five million objects.
    """
    arrays = {id(each): each for each in arrays_of(gc.get_objects()[-_MOST_OBJECTS:])}
    sizes: Counter[str] = Counter()
    size_by_id: set[tuple[int, int]] = set()
    for key, each in arrays.items():
        size_by_id.add((key, size := array_bytes(each)))
        sizes[kind_name(type(each))] += size
    # Only now: a tensor may cache a shape object when its size is read.
    objects = gc.get_objects()[-_MOST_OBJECTS:]
    number: Counter[str] = Counter()
    for kind, count in Counter(map(type, objects)).items():
        if not is_own(kind):
            number[kind_name(kind)] += count
    number |= Counter(kind_name(type(each)) for each in arrays.values())
    return Census(number, sizes, frozenset(size_by_id))


def kind_name(kind: type) -> str:
    """Return the name of a type without the private modules of its package.

    Example:
        >>> import keras
        >>> kind_name(dict), kind_name(keras.layers.Dense)
        ('dict', 'keras.Dense')
    """
    parts = module_of(kind).split(".")
    hidden = (i for i, part in enumerate(parts) if part in _HIDDEN or part[:1] == "_")
    module = ".".join(parts[: next(hidden, len(parts))])
    name = f"{module}.{attribute(kind, '__qualname__')}"
    return name.removeprefix("builtins.").removeprefix(".")


def grown(
    before: Census, after: Census, *, epochs: int, blocks: float = 0.0
) -> list[Growth]:
    """Return up to three types that grew most, sorted by bytes, then by number.

    Standard-library types need at least 100 objects and a tenth of `blocks`, the growth
    of all objects per epoch.
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
    # If megabytes of arrays grow, a few other objects are irrelevant.
    few = _MANY if of_size else _LEAST_NUMBER

    def is_many(one: Growth) -> bool:
        package = one.kind.partition(".")[0]
        is_pythons = package == one.kind or package in sys.stdlib_module_names
        return one.number >= (max(_MANY, blocks / 10) if is_pythons else few)

    of_number = [one for one in rates if one not in of_size and is_many(one)]
    of_size.sort(key=lambda one: -one.nbytes)
    return [*of_size, *sorted(of_number, key=lambda one: -one.number)][:3]


def newest(kind: str, number: int, before: Census) -> list[Any]:
    """Return up to three recent objects of a type, for arrays the largest new ones.

    Call after a garbage collection, which leaves objects sorted by age. `number` is the
    number of new objects since the census `before`.
    """
    objects = gc.get_objects()[-_MOST_OBJECTS:]
    arrays = {id(each): each for each in arrays_of(objects)}.values()
    of_kind = ((array_bytes(each), each) for each in _of_kind([*arrays], kind))
    new = [(n, each) for n, each in of_kind if (id(each), n) not in before.arrays]
    newest_last = [each for _, each in sorted(new, key=lambda one: one[0])]
    newest_last = newest_last or _of_kind(objects, kind)
    late = newest_last[-max(1, number) :]
    return late[:: -(-len(late) // 3) or 1]


def _of_kind(objects: list[Any], kind: str) -> list[Any]:
    kinds = {each for each in set(map(type, objects)) if kind_name(each) == kind}
    return [each for each in objects if type(each) in kinds]
