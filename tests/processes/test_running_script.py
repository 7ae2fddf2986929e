"""Classes and functions of the running script in another process."""

import subprocess
import sys
from typing import Any

import cloudpickle
import keras
import numpy as np
import pytest

import kerasmem as km
from kerasmem.processes.transfer import pack, unpack

PARTS = """
import keras

FACTOR = 3.0

@keras.saving.register_keras_serializable("notebook")
class Scale(keras.layers.Layer):
    def call(self, x):
        return FACTOR * x

class Descent(keras.optimizers.SGD):
    pass

def half_error(y_true, y_pred):
    return keras.ops.mean(keras.ops.square(y_true - y_pred), axis=-1) / 2

class Network(keras.Sequential):
    pass

def make():
    model = Network([keras.Input((6,)), keras.layers.Dense(4), Scale()])
    model.compile(Descent(0.5), half_error)
    return model
"""

SCRIPT = """
import kerasmem as km

estimate = km.estimate_memory(make(), 8, method="traced", device="cpu")
print("estimate", estimate.by_category()["parameter"])
print("batch", int(km.find_batch_size(make(), "1MiB", largest=2)))
print("isolated", km.memory.isolated(lambda model: type(model).__name__, make()))
"""


def test_a_model_of_parts_of_the_script_is_the_same_there():
    script: dict[str, Any] = {"__name__": "__main__"}
    exec(PARTS, script)
    model = script["make"]()
    # Another process does not have what the decorator registered here.
    keras.saving.get_custom_objects().pop("notebook>Scale")
    sent = cloudpickle.loads(cloudpickle.dumps(pack(model, model.optimizer, None)))
    again = unpack(sent, jit_compile=False)
    x, y = np.ones((2, 6), "float32"), np.ones((2, 4), "float32")
    again.layers[0].set_weights([np.full((6, 4), 0.5), np.zeros(4)])
    np.testing.assert_allclose(again.predict(x, verbose=0), np.full((2, 4), 9.0))
    # The mean of (9 - 1)^2 / 2, and one step down its gradient of 3 * 8 per sample.
    assert again.train_on_batch(x, y) == pytest.approx(32.0)
    bias = keras.ops.convert_to_numpy(again.layers[0].bias)
    np.testing.assert_allclose(bias, -0.5 * 3 * 8 / 4, rtol=1e-5)


@pytest.mark.one_backend
def test_a_script_estimates_and_measures_its_own_classes(tmp_path):
    path = tmp_path / "script.py"
    path.write_text(PARTS + SCRIPT)
    ran = subprocess.run(
        [sys.executable, str(path)], capture_output=True, text=True, check=False
    )
    assert ran.returncode == 0, ran.stderr
    words = dict(line.split() for line in ran.stdout.splitlines() if " " in line)
    assert words == {
        "estimate": "112",
        "batch": "2",
        "isolated": "Network",
    }  # 28 floats


@pytest.mark.one_backend
def test_a_job_that_cannot_be_pickled_is_refused():
    model = keras.Sequential([keras.Input((6,)), keras.layers.Dense(4)])
    lock = __import__("threading").Lock()
    loss = lambda y_true, y_pred: keras.ops.mean(y_pred) if lock else 0.0  # noqa: E731
    loss.__name__ = "locked"
    loss.__module__ = "__main__"
    model.compile("sgd", loss)
    with pytest.raises(
        km.errors.KerasMemError, match="cannot be sent to another process"
    ):
        km.estimate_memory(model, 2, method="traced")
