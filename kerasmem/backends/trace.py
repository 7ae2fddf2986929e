"""A step of a model as the framework would run it, found without running it."""

import importlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import keras

Step = Literal["train", "predict", "generate"]
"""A step of `fit`, of `predict`, or of `generate` of a `CausalLM` of KerasHub."""

STOP_TOKEN = 0
"""Generation ends at such a token, whichever it is."""


@dataclass(frozen=True, slots=True)
class OperationOutput:
    """A tensor that an operation makes.

    Args:
        shape: its shape, None if it is not known before the step runs.
        itemsize: bytes of one entry; 0 for what takes nothing of the device, such as a
            handle or the few integers of a shape.
    """

    shape: tuple[int, ...] | None
    itemsize: int

    @property
    def entries(self) -> int:
        """Number of entries, 0 if the shape is unknown."""
        product = 0 if self.shape is None else 1
        for size in self.shape or ():
            product *= size
        return product

    @property
    def nbytes(self) -> int:
        """Bytes of all entries."""
        return self.entries * self.itemsize


@dataclass(frozen=True, slots=True)
class Operation:
    """A node of a graph.

    Args:
        name: the framework's name of it, in which the Keras layer stands.
        kind: such as `"MatMul"`.
        inputs: the tensors it takes, each as the index of the operation that makes it
            and the number among that one's outputs.
        after: indices of operations that must have run before.
        outputs: the tensors it makes.
        attributes: those on which its scratch memory depends; for a handle, under
            `"variable"`, the index of its variable, if the model has it.
    """

    name: str
    kind: str
    inputs: tuple[tuple[int, int], ...]
    after: tuple[int, ...]
    outputs: tuple[OperationOutput, ...]
    attributes: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Graph:
    """A step as a graph.

    Args:
        operations: in the order in which they were made; a handle of a variable has
            the variable as its output.
        results: tensors that the caller gets.
    """

    operations: Sequence[Operation]
    results: Sequence[tuple[int, int]]


def tracer() -> Any:
    """Return the module that traces steps on the running backend."""
    name = keras.backend.backend()
    return importlib.import_module(f"kerasmem.backends.{name}.trace")
