"""A small model, and the errors of the frameworks without the frameworks."""

import os

import keras
import pytest

from kerasmem.backends.exhaustion import PoolState

# Not collected, so that it is no skipped test.
collect_ignore = (
    ["test_oom_elsewhere.py"] if os.environ.get("KERAS_BACKEND") == "tensorflow" else []
)


@pytest.fixture
def model():
    model = keras.Sequential(
        [
            keras.Input((20,)),
            keras.layers.Dense(512, activation="relu", name="wide"),
            keras.layers.Dense(128, activation="relu", name="narrow"),
            keras.layers.Dense(1, name="head"),
        ],
        name="tower",
    )
    model.compile("adam", "mse")
    return model


class ResourceExhaustedError(Exception):
    """Named as TensorFlow's, which is not installed everywhere."""


@pytest.fixture
def exhausted():
    """Return a function that makes TensorFlow's error of a tensor that did not fit."""

    def error(shape, operation="tower_1/wide_1/MatMul", device="CPU:0"):
        return ResourceExhaustedError(
            f"OOM when allocating tensor with shape[{shape}] and type float on /job:"
            f"localhost/replica:0/task:0/device:{device} by allocator bfc\n"
            f"\t [[{{{{node {operation}}}}}]] [Op:__inference_one_step_on_data_9]"
        )

    return error


class Noted:
    def __init__(self, state):
        self.state = state

    def fullest(self):
        return self.state


@pytest.fixture
def noted():
    """Return a function that makes a log of one refusal."""

    def log(in_use_bytes, pool_bytes, largest_free_bytes):
        return Noted(PoolState(in_use_bytes, pool_bytes, largest_free_bytes))

    return log
