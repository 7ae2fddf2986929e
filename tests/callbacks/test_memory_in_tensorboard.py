"""Stock TensorBoard, listed behind the monitor, writes its series to an event file."""

import keras
import pytest

from kerasmem.callbacks import MemoryMonitor
from tests.callbacks.fakes import FakeDevices


@pytest.fixture
def tensorflow(monkeypatch):
    """TensorFlow with `tf.summary.scalar`, which is in a package of its own."""
    import tensorflow as tf
    import tensorflow.summary as summary  # as Keras does: a module of its own

    def scalar(name, data, step=None):
        return summary.write(name, tf.constant(float(data)), step=step)

    monkeypatch.setattr(summary, "scalar", scalar)
    return tf


def scalars(tf, folder):
    (path,) = (folder / "train").glob("*tfevents*")
    events = tf.compat.v1.train.summary_iterator(str(path))
    return {
        (value.tag, event.step): float(tf.make_ndarray(value.tensor))
        for event in events
        for value in event.summary.value
        if value.tag.startswith("epoch_")
    }


def test_stock_tensorboard_writes_the_series(fit, devices, tensorflow, tmp_path):
    devices(FakeDevices())
    board = keras.callbacks.TensorBoard(tmp_path, write_graph=False)

    history = fit(MemoryMonitor(), board, epochs=2)

    found = scalars(tensorflow, tmp_path)
    for epoch in (0, 1):
        assert found["epoch_device_peak_mib", epoch] == 5.0
        assert found["epoch_device_mib", epoch] == 4.0
        assert found["epoch_device_sum_mib", epoch] == 7.0
        host = pytest.approx(history["host_peak_mib"][epoch], rel=1e-6)
        assert found["epoch_host_peak_mib", epoch] == host
