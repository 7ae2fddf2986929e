"""One update after the other in a TensorFlow graph, which else runs all at once."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import keras
import tensorflow as tf

_COLLECTION = "kerasmem_last_update_on_{}"


@contextmanager
def in_turn(
    gradient: tf.Tensor, variable: Any
) -> Iterator[Callable[[Sequence[tf.Tensor]], None]]:
    """Return a scope whose operations wait for `gradient` and for the scope before.

    A graph runs whatever has its inputs. Without this it would make floats of every
    code when a step begins, and hold them through the whole backward pass.

    Args:
        gradient: without it there is nothing to do yet.
        variable: what is updated; only updates on the same device wait.

    Returns:
        What to call, in the scope, with the last tensors that are made in it.
    """
    if tf.executing_eagerly():
        yield lambda _: None
        return
    if isinstance(variable, keras.Variable):
        variable = variable.value
    graph = tf.compat.v1.get_default_graph()
    # A collection lives and dies with its graph.
    last = graph.get_collection_ref(_COLLECTION.format(variable.device))
    own = [operation for operation in last if operation.graph is graph]

    def finish(results: Sequence[tf.Tensor]) -> None:
        with tf.control_dependencies(results):
            last[:] = [tf.no_op()]

    with tf.control_dependencies([gradient, *own]):
        yield finish
