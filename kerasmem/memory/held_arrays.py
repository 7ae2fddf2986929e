"""The arrays and tensors that objects hold, known to the garbage collector or not."""

import gc
from collections.abc import Iterator, Sequence
from contextlib import suppress
from itertools import compress
from typing import Any

import keras
import numpy as np

from kerasmem.graph.values import nbytes
from kerasmem.memory.kinds import KindTable, attribute, is_own

_CHUNK = 20_000
_PLAIN = frozenset((dict, tuple))


def arrays_of(objects: Sequence[Any]) -> Iterator[Any]:
    """Yield the arrays and tensors that some objects hold; one may come repeatedly.

    Args:
        objects: some that the garbage collector knows.
    """
    has_size, arrays = KindTable(_has_size), dict[type, bool]()
    for container in held_by(objects, has_size):
        for one in compress(container, map(has_size.__getitem__, map(type, container))):
            kind = type(one)
            if kind not in arrays:  # to ask each is slow
                arrays[kind] = is_array(one)
            if arrays[kind]:
                yield one


def held_by(objects: Sequence[Any], sized: KindTable | None = None) -> Iterator[list]:
    """Yield dictionaries and tuples that objects hold, part by part, some repeatedly.

    What is held by containers that are `untracked` is yielded too.

    Args:
        objects: some that the garbage collector knows.
        sized: kinds of objects that are yielded besides.
    """
    kinds = KindTable(
        lambda kind: kind in _PLAIN or (sized is not None and sized[kind])
    )
    for start in range(0, len(objects), _CHUNK):
        containers = gc.get_referents(*objects[start : start + _CHUNK])
        while containers:
            containers = [
                *compress(containers, map(kinds.__getitem__, map(type, containers)))
            ]
            yield containers
            containers = gc.get_referents(*untracked(containers))


def untracked(held: Sequence[Any]) -> list[Any]:
    """Return the dictionaries and tuples that the garbage collector does not know.

    They hold nothing but arrays, numbers, text or others of their kind.

    Args:
        held: any objects.
    """
    return [one for one in held if type(one) in _PLAIN and not gc.is_tracked(one)]


def is_array(one: Any) -> bool:
    """Return True for an array of NumPy or a tensor of the backend."""
    if issubclass(type(one), np.ndarray):
        return True
    with suppress(Exception):  # TensorFlow reads attributes of the type
        return keras.ops.is_tensor(one)
    return False


def array_bytes(each: Any) -> int:
    """Return the bytes of an array or tensor, 0 for a view of another array."""
    if isinstance(each, np.ndarray):
        return each.nbytes if each.base is None else 0
    with suppress(TypeError, ValueError):  # symbolic, or of no type that has a size
        return nbytes(each)
    return 0


def _has_size(kind: type) -> bool:
    # Of the type: to ask the object wakes lazy modules and breaks at dead proxies. A
    # symbolic tensor has no value, and would make an object of its shape when asked.
    if is_own(kind) or not _has(kind, "shape") or not _has(kind, "dtype"):
        return False
    return _has(kind, "numpy") or _has(kind, "nbytes")


def _has(kind: type, name: str) -> bool:
    bases = attribute(kind, "__mro__")
    return any(name in attribute(base, "__dict__") for base in bases)
