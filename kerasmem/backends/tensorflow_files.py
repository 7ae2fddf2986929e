"""TensorFlow checkpoints, readable with any Keras backend.

Uses only TensorFlow's checkpoint reader, without devices or computations.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from kerasmem.records import Scalar

_GRAPH = "_CHECKPOINTABLE_OBJECT_GRAPH"


@dataclass(frozen=True)
class Node:
    """An object in a checkpoint. For a variable, `key` is the key of its value."""

    children: dict[str, int]
    name: str
    key: str | None


class Checkpoint:
    """The objects and variable values of a checkpoint.

    `prefix` is the path of the files up to and including `variables`. Raises
    `ValueError` if the checkpoint is missing or damaged.
    """

    def __init__(self, prefix: Path) -> None:
        import tensorflow as tf
        from tensorflow.core.protobuf import trackable_object_graph_pb2 as graph_pb2

        try:
            self._reader = tf.train.load_checkpoint(str(prefix))
            content = self._reader.get_tensor(_GRAPH)
            graph = graph_pb2.TrackableObjectGraph.FromString(content)
        except Exception as error:
            raise ValueError(str(error)) from error
        self._nodes = [_node(node) for node in graph.nodes]

    @property
    def root(self) -> Node:
        """The root object."""
        return self._nodes[0]

    def child(self, node: Node, name: str) -> Node:
        """Return a child object, or raise `KeyError`."""
        return self._nodes[node.children[name]]

    def array(self, node: Node) -> np.ndarray:
        """Return the value of a variable, or raise `ValueError`."""
        try:
            return self._reader.get_tensor(node.key)
        except Exception as error:
            raise ValueError(str(error)) from error


def _node(saved: Any) -> Node:
    values = [a for a in saved.attributes if a.name == "VARIABLE_VALUE"]
    return Node(
        children={child.local_name: child.node_id for child in saved.children},
        name=values[0].full_name if values else "",
        key=values[0].checkpoint_key if values else None,
    )


def write_events(path: Path, scalars: Iterable[Scalar]) -> None:
    """Write an event file. TensorBoard requires `tfevents` in the final name."""
    import tensorflow as tf

    event, summary = tf.compat.v1.Event, tf.compat.v1.Summary
    path.touch()  # raises OSError, unlike TensorFlow
    with tf.io.TFRecordWriter(str(path)) as file:
        file.write(event(file_version="brain.Event:2").SerializeToString())
        for scalar in scalars:
            value = summary.Value(tag=scalar.tag, simple_value=scalar.value)
            point = event(
                wall_time=scalar.time, step=scalar.step, summary=summary(value=[value])
            )
            file.write(point.SerializeToString())
