"""A model with quantized weights, for a while as the float model it stands for."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from kerasmem.compression.quantize.owners import quantized_variables


@contextmanager
def as_floats(model: Any) -> Iterator[None]:
    """Keep the weights of `model` as float32, made once, within the scope.

    No layer rounds its inputs or multiplies in blocks there.

    Args:
        model: a built model that computes in float32.
    """
    variables = quantized_variables(model)
    before = [(v._own_dtype, v.block_count, v.dynamic) for v in variables]
    for variable in variables:
        variable._own_dtype, variable.block_count = "float32", 1
        variable.dynamic = False
        variable.hoist()
    try:
        yield
    finally:
        for variable, kept in zip(variables, before, strict=True):
            variable._own_dtype, variable.block_count, variable.dynamic = kept
            variable.drop()
