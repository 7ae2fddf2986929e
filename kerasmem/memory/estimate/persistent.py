"""What is on the device between steps: the variables of a model and its optimizer."""

import math
from dataclasses import dataclass
from typing import Any

from kerasmem.graph.layers import weights
from kerasmem.memory.estimate.precision import Precision, width
from kerasmem.memory.estimate.request import Request
from kerasmem.memory.estimate.slots import optimizer_slots
from kerasmem.records import EstimatePart


@dataclass(frozen=True)
class _Stored:
    """A variable in the type that it is assumed to be stored in."""

    name: str
    path: str
    shape: tuple[int, ...]
    dtype: str
    overwrite_with_gradient: bool = False


def persistent_parts(request: Request) -> list[EstimatePart]:
    """Return the bytes of every variable, exact: parameters, then optimizer slots."""
    precision = Precision(request.model, request.dtype_policy)
    stored = [(w, _stored(precision, w.variable)) for w in weights(request.model)]
    parts = [
        EstimatePart("parameter", _layer(v.path), math.prod(v.shape) * width(v.dtype))
        for _, v in stored
    ]
    if request.optimizer is None:
        return parts
    trained = [v for w, v in stored if w.variable.trainable]
    slots = optimizer_slots(request.optimizer, trained, request.backend)
    return parts + [
        EstimatePart("optimizer_state", _layer(slot.variable), slot.nbytes)
        for slot in slots
    ]


def _stored(precision: Precision, variable: Any) -> _Stored:
    return _Stored(
        variable.name,
        variable.path,
        tuple(variable.shape),
        precision.variable_dtype(variable),
        getattr(variable, "overwrite_with_gradient", False),
    )


def _layer(path: str | None) -> str | None:
    return path.rpartition("/")[0] or None if path else None
