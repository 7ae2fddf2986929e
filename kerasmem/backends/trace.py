"""Steps of a model as the framework would execute them, without execution."""

import importlib
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import keras

Step = Literal["train", "predict", "generate"]
"""A step of `fit`, of `predict`, or of `generate` of a KerasHub `CausalLM`."""

STOP_TOKEN = 0
"""Token that ends generation. Any value works."""


@dataclass(frozen=True, slots=True)
class OperationOutput:
    """An output tensor of an operation. An unknown shape is None.

    `itemsize` is 0 without device memory, as for handles and small integer shapes.
    """

    shape: tuple[int, ...] | None
    itemsize: int

    @property
    def entries(self) -> int:
        """Number of entries, 0 if the shape is unknown."""
        return 0 if self.shape is None else math.prod(self.shape)

    @property
    def nbytes(self) -> int:
        """Bytes of all entries."""
        return self.entries * self.itemsize


@dataclass(frozen=True, slots=True)
class Operation:
    """A node of a graph.

    `name` contains the Keras layer. Inputs are pairs of operation index and output
    index. Operations in `after` must run before. `attributes` determine the scratch
    memory. For a handle, `"variable"` is the index of the model variable.
    """

    name: str
    kind: str
    inputs: tuple[tuple[int, int], ...]
    after: tuple[int, ...]
    outputs: tuple[OperationOutput, ...]
    attributes: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Graph:
    """A step as a graph, with operations in order of creation.

    The output of a variable handle is the variable.
    """

    operations: Sequence[Operation]
    results: Sequence[tuple[int, int]]


def tracer() -> Any:
    """Return the trace module of the active backend."""
    name = keras.backend.backend()
    return importlib.import_module(f"kerasmem.backends.{name}.trace")
