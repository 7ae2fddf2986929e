"""Which weights are kernels, and along which axes their channels lie."""

from typing import Any

from kerasmem.graph.kinds import entry_of
from kerasmem.graph.layers import Weight
from kerasmem.graph.products import summed_axes


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
    is_one = _layout(weight) in ("depthwise", "separable")
    return is_one and weight.variable.name in ("kernel", "depthwise_kernel")


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
    if _layout(weight) == "transposed":
        return (*range(rank - 2), rank - 1)
    if _layout(weight) == "einsum":
        return _contracted(weight.owner)
    return summed_axes(weight) or tuple(range(rank - 1))


def einsum_parts(equation: str) -> tuple[str, str, str]:
    """Return the letters of what an EinsumDense takes, its kernel and its output.

    Example:
        >>> einsum_parts("...d, dh -> ...h")
        ('...d', 'dh', '...h')
    """
    inputs, output = equation.replace(" ", "").split("->")
    given, kernel = inputs.split(",")
    return given, kernel, output


def _layout(weight: Weight) -> str | None:
    return entry_of(weight.owner, subclasses=True).kernel


def _contracted(layer: Any) -> tuple[int, ...]:
    """Return the axes of an EinsumDense kernel that its output does not have."""
    _, kernel, output = einsum_parts(layer.equation)
    return tuple(axis for axis, letter in enumerate(kernel) if letter not in output)
