"""Which weights are kernels, and along which axes their channels lie."""

from typing import Any

import keras

from kerasmem.graph.layers import Weight
from kerasmem.graph.products import summed_axes

_DEPTHWISE = (
    keras.layers.DepthwiseConv1D,
    keras.layers.DepthwiseConv2D,
    keras.layers.SeparableConv1D,
    keras.layers.SeparableConv2D,
)
_TRANSPOSED = (
    keras.layers.Conv1DTranspose,
    keras.layers.Conv2DTranspose,
    keras.layers.Conv3DTranspose,
)


def is_kernel(weight: Weight) -> bool:
    """Return True for a weight that multiplies a layer's input: a matrix or more.

    Kernels, recurrent kernels and embedding tables are; biases, normalization
    statistics and scales are not. Of a layer that is not one of Keras's so is what its
    products take, such as a bank of experts, a matrix for each.
    """
    variable = weight.variable
    if variable.name.endswith("kernel") or is_embedding(weight):
        return len(variable.shape) >= 2
    # A bias or a table of positions may be multiplied with, as relative ones are.
    is_added = any(word in variable.name for word in ("bias", "embed"))
    return not is_added and summed_axes(weight) is not None


def is_embedding(weight: Weight) -> bool:
    """Return True for a table, (rows, width), whose rows are looked up by index."""
    variable = weight.variable
    return variable.name.endswith("embeddings") and len(variable.shape) == 2


def is_depthwise(weight: Weight) -> bool:
    """Return True for a kernel that looks at one input channel at a time."""
    return isinstance(weight.owner, _DEPTHWISE) and (
        weight.variable.name in ("kernel", "depthwise_kernel")
    )


def reduced_axes(weight: Weight) -> tuple[int, ...]:
    """Return the axes of a kernel that one output channel sums over.

    What is left are the channels: each gets a scale of its own. For an embedding
    table the channels are its rows, which are looked up one by one. In a bank of
    experts of shape (experts, in, out) every expert has channels of its own.
    """
    rank = len(weight.variable.shape)
    if is_embedding(weight):
        return (rank - 1,)
    if is_depthwise(weight):
        return tuple(range(rank - 2))
    if isinstance(weight.owner, _TRANSPOSED):
        return (*range(rank - 2), rank - 1)
    if isinstance(weight.owner, keras.layers.EinsumDense):
        return _contracted(weight.owner)
    return summed_axes(weight) or tuple(range(rank - 1))


def _contracted(layer: Any) -> tuple[int, ...]:
    """Return the axes of an EinsumDense kernel that its output does not have."""
    inputs, output = layer.equation.replace(" ", "").split("->")
    kernel = inputs.split(",")[1]
    return tuple(axis for axis, letter in enumerate(kernel) if letter not in output)
