"""Trains the nets that all tools are given; Keras's own file of them."""

import keras
import numpy as np

from tests.benchmarks.peers.networks import (
    accuracy,
    compiled,
    falling_rate,
    fit,
    network,
    trained_network,
    weight_bytes,
)
from tests.benchmarks.peers.row import Row, sizes

TOOL, PACKAGE = "Keras", "keras"


def row_of(task, name, job, model, note=""):
    """Return the row of a Keras 3 model, judged as it is read back from its file.

    The file is without the state of the optimizer, which would make it three times as
    large.
    """
    path = task.path(f"keras_{name}.keras")
    compiled(model, keras).save(path)
    again = keras.models.load_model(path, compile=False)
    right = accuracy(again, keras, task.images()[1])
    return Row(
        name,
        job,
        form=".keras",
        weight_bytes=weight_bytes(again),
        accuracy=right,
        note=note,
        **sizes(path),
    )


def trained(task, name, job):
    keras.utils.set_random_seed(0)
    model = compiled(network(name, keras), keras, falling_rate(task, keras))
    fit(model, task.images()[0], task.epochs)
    np.savez(task.path(f"{name}.npz"), *model.get_weights())
    yield row_of(task, name, job, model)


def trained_on(task, name, job):
    model = trained_network(task, name, keras)
    fit(model, task.images()[0], task.more_epochs)
    yield row_of(task, name, job, model, "how far the epochs alone get")


JOBS = {"float": trained, "float, trained on": trained_on}
