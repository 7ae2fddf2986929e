"""Replaces a weight by a value that is computed on access."""

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import keras

from kerasmem.types import Variable


class ComputedVariable(keras.Variable):
    """Computed replacement of a weight. A subclass defines `value` and `dtype`.

    Layers read the `value` as usual, such as in `ops.matmul(x, self.kernel)`. The class
    extends `keras.Variable`, because backends check this type when converting weights
    to tensors. It does not use the state of `keras.Variable`.
    """

    def __init__(self, origin: Any) -> None:
        self._own_name, self._own_path = origin.name, origin.path
        self._own_shape = origin.shape

    def has_parts(self, axis: int) -> bool:
        """Returns whether `part` can compute a range along an axis separately."""
        del axis
        return False

    def part(self, axis: int, start: int, stop: int, after: Any) -> Any:
        """Returns a range of the value, computed after the tensor `after`."""
        raise NotImplementedError

    name = property(lambda self: self._own_name)
    path = property(lambda self: self._own_path)
    shape = property(lambda self: self._own_shape)
    ndim = property(lambda self: len(self._own_shape))
    # LoRA sets this attribute to False.
    trainable = property(lambda _: False, lambda _, value: None)  # noqa: ARG005
    regularizer = property(lambda _: None)
    constraint = property(lambda _: None)

    def __repr__(self) -> str:
        return f"<{type(self).__name__} path={self.path}, shape={self.shape}>"


@contextmanager
def named_beside(weight: Variable) -> Iterator[None]:
    """Opens name scopes, so that new variables have the path prefix of a weight."""
    with ExitStack() as scopes:
        for part in weight.path.split("/")[:-1]:
            scopes.enter_context(keras.name_scope(part))
        yield


CHUNKS, LEAST_ROWS, PARTS = 32, 128, 16
"""Chunked vocabulary: number of chunks, minimum rows per chunk, parts of words."""


def rows_of_chunk(rows: int) -> int:
    """Returns the number of rows with logits in memory at once."""
    return min(max(-(-rows // CHUNKS), LEAST_ROWS), rows)
