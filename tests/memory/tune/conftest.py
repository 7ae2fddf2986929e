"""A question about a small model, as `tune` asks it."""

import keras
import pytest
from keras import layers

from kerasmem.memory.estimate.request import Input, Request


def ask(model, batch_size, *, jit_compile=False):
    return Request(
        model=model,
        inputs=tuple(
            Input(x.name, (batch_size, *x.shape[1:]), x.dtype) for x in model.inputs
        ),
        batch_size=batch_size,
        optimizer=model.optimizer,
        dtype_policy=None,
        jit_compile=jit_compile,
        backend=keras.backend.backend(),
        training=True,
        device="cpu",
    )


@pytest.fixture
def question():
    return ask


@pytest.fixture
def deep():
    """3 KiB of weights; 8 KiB of activations for a sample."""
    hidden = [layers.Dense(8, activation="tanh") for _ in range(4)]
    model = keras.Sequential(
        [keras.Input((64, 4)), *hidden, layers.Flatten(), layers.Dense(1)]
    )
    model.compile("sgd", "mse", jit_compile=keras.backend.backend() == "jax")
    return model
