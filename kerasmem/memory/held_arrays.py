"""Finds arrays and tensors that objects reference, tracked by the collector or not."""

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
    """Yield the arrays and tensors that `objects` reference, possibly repeatedly."""
    has_size, arrays = KindTable(_has_size), dict[type, bool]()
    for container in held_by(objects, has_size):
        for one in compress(container, map(has_size.__getitem__, map(type, container))):
            kind = type(one)
            if kind not in arrays:  # Checking each object is slow.
                arrays[kind] = is_array(one)
            if arrays[kind]:
                yield one


def held_by(objects: Sequence[Any], sized: KindTable | None = None) -> Iterator[list]:
    """Yield lists of dictionaries and tuples referenced by objects, with repetitions.

    The contents of `untracked` containers are included. `sized` contains additional
    types to yield.
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
    """Return the dictionaries and tuples that the garbage collector does not track.

    They contain only arrays, numbers, text or other untracked containers.
    """
    return [one for one in held if type(one) in _PLAIN and not gc.is_tracked(one)]


def is_array(one: Any) -> bool:
    """Return whether an object is a NumPy array or a tensor of the backend."""
    if issubclass(type(one), np.ndarray):
        return True
    with suppress(Exception):  # TensorFlow reads attributes of the type.
        return keras.ops.is_tensor(one)
    return False


def array_bytes(each: Any) -> int:
    """Return the bytes of an array or tensor, 0 for a view."""
    if isinstance(each, np.ndarray):
        return each.nbytes if each.base is None else 0
    with suppress(TypeError, ValueError):  # A symbolic tensor or a dtype without size.
        return nbytes(each)
    return 0


def _has_size(kind: type) -> bool:
    # The type is checked because reading attributes of objects loads lazy modules and
    # fails for dead weak proxies. A symbolic tensor would also create a shape object.
    if is_own(kind) or not _has(kind, "shape") or not _has(kind, "dtype"):
        return False
    return _has(kind, "numpy") or _has(kind, "nbytes")


def _has(kind: type, name: str) -> bool:
    bases = attribute(kind, "__mro__")
    return any(name in attribute(base, "__dict__") for base in bases)
