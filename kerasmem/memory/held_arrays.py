"""Finds arrays and tensors that objects reference, tracked by the collector or not."""

import functools
import gc
from collections.abc import Iterator, Sequence
from contextlib import suppress
from typing import Any

import keras
import numpy as np

from kerasmem.graph.values import nbytes

_CHUNK = 20_000
_PLAIN = frozenset((dict, tuple))


def arrays_of(objects: Sequence[Any]) -> Iterator[Any]:
    """Yield the arrays and tensors that `objects` reference, possibly repeatedly.

    The contents of dictionaries and tuples that the garbage collector does not track
    are included. They contain only arrays, numbers, text or other such containers.
    """
    has_size, arrays = functools.cache(_has_size), dict[type, bool]()
    for start in range(0, len(objects), _CHUNK):
        referents = gc.get_referents(*objects[start : start + _CHUNK])
        while referents:
            for one in referents:
                kind = type(one)
                if has_size(kind) and kind not in arrays:  # Each check is slow.
                    arrays[kind] = is_array(one)
                if arrays.get(kind):
                    yield one
            plain = (one for one in referents if type(one) in _PLAIN)
            referents = gc.get_referents(*(x for x in plain if not gc.is_tracked(x)))


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


def is_own(kind: type) -> bool:
    """Return whether a type belongs to kerasmem."""
    return module_of(kind).startswith("kerasmem.")


def module_of(kind: type) -> str:
    """Return the module name of a type, or `""` if it is not a string."""
    module = attribute(kind, "__module__")
    return module if isinstance(module, str) else ""  # Some classes define a property.


def attribute(kind: type, name: str) -> Any:
    """Return an attribute defined for every type, without calling the metaclass.

    Example:
        >>> attribute(int, "__name__")
        'int'
    """
    return type.__dict__[name].__get__(kind)
