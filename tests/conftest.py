"""The suite runs under one named backend; an unnamed one is an error, not a default."""

import os

import pytest

BACKENDS = ("tensorflow", "jax", "torch")

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")


def pytest_configure(config):
    backend = os.environ.get("KERAS_BACKEND")
    if backend not in BACKENDS:
        raise pytest.UsageError(
            f"Set KERAS_BACKEND to one of {BACKENDS}. Received: {backend!r}."
        )


@pytest.fixture(autouse=True)
def _same_start():
    """Every test starts from one seed and leaves no Keras state behind."""
    import keras

    keras.utils.set_random_seed(7)
    yield
    keras.utils.clear_session(free_memory=False)


@pytest.fixture
def backend():
    import keras

    return keras.backend.backend()
