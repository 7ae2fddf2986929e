"""A fixture for folders whose tests compile much and run little."""

import keras
import pytest


@pytest.fixture(autouse=True)
def quick_compiler():
    """Have XLA for JAX compile quickly: what it makes runs for some milliseconds."""
    if keras.backend.backend() != "jax":
        yield
        return
    import jax

    jax.config.update("jax_disable_most_optimizations", True)
    yield
    jax.config.update("jax_disable_most_optimizations", False)
