"""Scalars in a file that TensorBoard reads.

TensorFlow writes it, whatever the backend of Keras is: it is always installed.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path


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
