"""A weight of a layer that is no variable: its value is computed where it is read."""

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import keras


class ComputedVariable(keras.Variable):
    """Has the place of a weight of a layer; a subclass says its `value` and `dtype`.

    Any layer that reads the weight (`ops.matmul(x, self.kernel)`) gets the `value`, so
    no layer needs to know. `keras.Variable` is subclassed because that is what every
    backend asks for when it turns a weight into a tensor; none of its own state is
    used.

    Args:
        origin: the weight that is replaced.
    """

    def __init__(self, origin: Any) -> None:
        self._own_name, self._own_path = origin.name, origin.path
        self._own_shape = origin.shape

    def has_parts(self, axis: int) -> bool:
        """Return True if `part` computes some entries along an axis without others."""
        del axis
        return False

    def part(self, axis: int, start: int, stop: int, after: Any) -> Any:
        """Return some entries of the value, computed once the tensor `after` is there.

        Args:
            axis: one of which `has_parts` was true.
            start: where to begin along it.
            stop: where to end.
            after: any tensor.
        """
        raise NotImplementedError

    name = property(lambda self: self._own_name)
    path = property(lambda self: self._own_path)
    shape = property(lambda self: self._own_shape)
    ndim = property(lambda self: len(self._own_shape))
    # LoRA sets it, to False.
    trainable = property(lambda _: False, lambda _, value: None)  # noqa: ARG005
    regularizer = property(lambda _: None)
    constraint = property(lambda _: None)

    def __repr__(self) -> str:
        return f"<{type(self).__name__} path={self.path}, shape={self.shape}>"


@contextmanager
def named_beside(weight: Any) -> Iterator[None]:
    """Return a scope for variables whose paths begin as that of a weight."""
    with ExitStack() as scopes:
        for part in weight.path.split("/")[:-1]:
            scopes.enter_context(keras.name_scope(part))
        yield


CHUNKS, LEAST_ROWS, PARTS = 32, 128, 16
"""Of a chunked vocabulary: chunks of rows, fewest rows of a chunk, parts of words."""


def rows_of_chunk(rows: int) -> int:
    """Return the number of rows whose logits are in memory at once."""
    return min(max(-(-rows // CHUNKS), LEAST_ROWS), rows)
