"""What tells one model from another."""

import hashlib
import json
from collections.abc import Sequence
from typing import Any

import numpy as np

from kerasmem.graph.values import to_numpy

_DIGEST_BYTES = 16


def model_digest(model: Any, what: Sequence[str]) -> str:
    """Return a digest of a model's config and weights.

    Args:
        model: a built model.
        what: plain data that is to be told apart too, such as names of layers.
    """
    digest = hashlib.blake2b(digest_size=_DIGEST_BYTES)
    plain = [_config(model), list(what)]
    digest.update(json.dumps(plain, sort_keys=True, default=_name).encode())
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
