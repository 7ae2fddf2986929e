"""Sizes with which a GPU's tensor cores are less than fully used.

They multiply fastest where the rows of all operands are multiples of 16 bytes: 8
numbers of 16 bits, 4 of TF32 (NVIDIA, "Matrix Multiplication Background User's Guide",
2023, section 2.2; on an A100 multiples of 128 bytes are better still).
"""

from collections.abc import Iterator
from typing import Any

from kerasmem.graph.kernels import is_depthwise, is_embedding, is_kernel
from kerasmem.graph.layers import Weight, has_graph, weights
from kerasmem.records import OddSize

_OF_16_BITS, _OF_TF32 = 8, 4
_SET_BY_USER = ("units", "filters", "output_dim")
_FEATURES_RANK = 3  # images have more axes, and cuDNN pads their channels itself


def odd_sizes(model: Any, batch_size: int) -> tuple[OddSize, ...]:
    """Return the sizes that are no multiple of 8, each once, with the next that is.

    Those are looked at that a user chooses: outputs of layers, the features of inputs
    and the batch. A kernel's other side follows from them.

    Args:
        model: a built model.
        batch_size: samples in a batch.
    """
    found = {("", "batch size"): batch_size}
    if has_graph(model):
        for tensor in model.inputs:
            shape = tensor.shape
            is_table = "float" in tensor.dtype and 2 <= len(shape) <= _FEATURES_RANK
            if is_table and shape[-1] is not None:
                found[tensor.name, "features"] = shape[-1]
    found |= dict(_outputs(model))
    return tuple(
        OddSize(*place, size, _next(size, _OF_16_BITS), _next(size, _OF_TF32))
        for place, size in found.items()
        if size % _OF_16_BITS
    )


def _outputs(model: Any) -> Iterator[tuple[tuple[str, str], int]]:
    for weight in weights(model):
        if is_embedding(weight) or (is_kernel(weight) and not is_depthwise(weight)):
            name, size = _output(weight)
            layer = weight.path.rpartition("/")[0].removeprefix(f"{model.name}/")
            yield (layer, name), size


def _output(weight: Weight) -> tuple[str, int]:
    """Return what the layer calls the size of its output, and the size in a group."""
    for name in _SET_BY_USER:
        size = getattr(weight.owner, name, None)
        if isinstance(size, int):
            groups = getattr(weight.owner, "groups", 1)
            return (name, size) if groups == 1 else (f"{name} a group", size // groups)
    return "last axis of the kernel", weight.variable.shape[-1]


def _next(size: int, multiple: int) -> int:
    return -(-size // multiple) * multiple
