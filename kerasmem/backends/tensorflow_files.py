"""TensorFlow's checkpoints, read whichever backend Keras runs on.

TensorFlow's own reader is what is used of it; no device is started, nothing computed.
"""

import importlib
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from kerasmem.backends.protobuf import fields

_GRAPH = "_CHECKPOINTABLE_OBJECT_GRAPH"


@dataclass
class Node:
    """One object that was saved.

    Args:
        children: numbers of the objects within, by the name of the attribute.
        name: of a variable.
        key: under which its value stands, None for what is no variable.
    """

    children: dict[str, int] = field(default_factory=dict)
    name: str = ""
    key: str | None = None


class Checkpoint:
    """The objects of a checkpoint, and the values of variables.

    Args:
        prefix: path of its files without what follows `variables`.

    Raises:
        ValueError: if there is none, or it is damaged.
    """

    def __init__(self, prefix: Path) -> None:
        train: Any = importlib.import_module("tensorflow").train
        try:
            self._reader = train.load_checkpoint(str(prefix))
            graph = self._reader.get_tensor(_GRAPH)
        except Exception as error:
            raise ValueError(str(error)) from error
        self._nodes = [
            _node(value)
            for number, value in fields(memoryview(graph))
            if number == 1 and isinstance(value, memoryview)
        ]

    @property
    def root(self) -> Node:
        """The object that was saved as a whole."""
        return self._nodes[0]

    def child(self, node: Node, name: str) -> Node:
        """Return an object within.

        Raises:
            KeyError: if there is none of that name.
        """
        return self._nodes[node.children[name]]

    def array(self, node: Node) -> np.ndarray:
        """Return the value of a variable.

        Raises:
            ValueError: if it is none, or damaged.
        """
        try:
            return self._reader.get_tensor(node.key)
        except Exception as error:
            raise ValueError(str(error)) from error


def _node(message: memoryview) -> Node:
    node = Node()
    for number, value in fields(message):
        if number == 1 and isinstance(value, memoryview):
            child = dict(fields(value))
            # A zero is left out of a protocol buffer.
            node.children[_text(child[2])] = int(child.get(1, 0))  # pyright: ignore[reportArgumentType]
        elif number == 2 and isinstance(value, memoryview):
            attribute = dict(fields(value))
            if _text(attribute[1]) == "VARIABLE_VALUE":
                node.name, node.key = _text(attribute[2]), _text(attribute[3])
    return node


def _text(value: Any) -> str:
    return bytes(value).decode("utf-8")


@dataclass(frozen=True)
class Scalar:
    """One point of one series.

    Args:
        tag: name of the series, such as `"memory/GPU:0/peak_mib"`.
        step: place on TensorBoard's axis of steps.
        time: seconds since 1970 (UTC).
        value: the number; the file holds it as float32.
    """

    tag: str
    step: int
    time: float
    value: float


def write_events(path: Path, scalars: Iterable[Scalar]) -> None:
    """Write one event file; TensorBoard wants `tfevents` in its final name.

    Raises:
        OSError: if it cannot be written.
    """
    import tensorflow as tf

    event, summary = tf.compat.v1.Event, tf.compat.v1.Summary
    path.touch()  # TensorFlow's own error would be no OSError
    with tf.io.TFRecordWriter(str(path)) as file:
        file.write(event(file_version="brain.Event:2").SerializeToString())
        for scalar in scalars:
            value = summary.Value(tag=scalar.tag, simple_value=scalar.value)
            point = event(
                wall_time=scalar.time, step=scalar.step, summary=summary(value=[value])
            )
            file.write(point.SerializeToString())
