"""What tells one teacher from another, and one sample from another."""

import hashlib
import json
from collections.abc import Sequence
from typing import Any

import keras
import numpy as np

from kerasmem.graph.values import to_numpy

KEY_BYTES = 16


def teacher_digest(model: Any, what: Sequence[str]) -> str:
    """Return a digest of a teacher's config and weights, and of what it is asked.

    Args:
        model: a built model.
        what: names of whatever else decides the answers, such as layers.
    """
    digest = hashlib.blake2b(digest_size=KEY_BYTES)
    digest.update(json.dumps([_config(model), list(what)], sort_keys=True).encode())
    for variable in model.variables:
        if "seed_generator" in variable.path:  # it moves on with every draw
            continue
        value = np.ascontiguousarray(to_numpy(variable))
        digest.update(f"{value.dtype}{value.shape}".encode())
        digest.update(value.tobytes())
    return digest.hexdigest()


def _config(model: Any) -> Any:
    try:
        return json.loads(json.dumps(model.get_config(), default=_name))
    except NotImplementedError:
        return type(model).__qualname__


def _name(value: Any) -> str:
    return getattr(value, "__qualname__", type(value).__qualname__)


def sample_keys(x: Any) -> list[bytes]:
    """Return a digest of every sample of a batch.

    Args:
        x: inputs: an array, or a dict or list of arrays.
    """
    arrays = [np.ascontiguousarray(to_array(leaf)) for leaf in keras.tree.flatten(x)]
    rows = [array.reshape(len(array), -1) for array in arrays]
    head = "".join(f"{a.dtype}{a.shape[1:]}" for a in arrays).encode()
    return [
        hashlib.blake2b(
            b"".join((head, *(part[i].tobytes() for part in rows))),
            digest_size=KEY_BYTES,
        ).digest()
        for i in range(len(rows[0]))
    ]


def to_array(value: Any) -> np.ndarray:
    """Return an array or a tensor as a NumPy array."""
    return value if isinstance(value, np.ndarray) else keras.ops.convert_to_numpy(value)
