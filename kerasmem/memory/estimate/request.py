"""The checked question that every method of estimating answers."""

from dataclasses import dataclass
from typing import Any

from kerasmem.graph.layers import has_graph


@dataclass(frozen=True)
class Input:
    """One input of the model.

    Args:
        name: its name.
        shape: its shape with the batch axis, every length known.
        dtype: type of its entries such as `"float32"`.
    """

    name: str
    shape: tuple[int, ...]
    dtype: str


@dataclass(frozen=True, kw_only=True)
class Request:
    """A checked question. Nothing in it was changed or computed.

    Args:
        model: a built `keras.Model`.
        inputs: its inputs, batch axis included; empty for a model without a graph of
            which nobody told the shape.
        batch_size: samples in the batch, from 1.
        optimizer: a `keras.optimizers.Optimizer`, built or not, whose slots are meant;
            None without training.
        dtype_policy: name of the policy to assume for every layer that has the
            model's own; None for the layers' own.
        jit_compile: whether the step is compiled.
        backend: one of `BACKENDS`; not always the running one.
        training: True for a training step, False for `predict`.
        device: one of `DEVICES`.
    """

    model: Any
    inputs: tuple[Input, ...]
    batch_size: int
    optimizer: Any | None
    dtype_policy: str | None
    jit_compile: bool
    backend: str
    training: bool
    device: str

    @property
    def input_shapes(self) -> tuple[tuple[int, ...], ...]:
        """The shapes of the inputs, batch axis included."""
        return tuple(x.shape for x in self.inputs)

    @property
    def has_graph(self) -> bool:
        """True for a Sequential or Functional model."""
        return has_graph(self.model)
