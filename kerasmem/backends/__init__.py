"""The only room in which TensorFlow, JAX and torch are imported.

`current()` returns the adapter of the backend that Keras runs on; its methods are
those of `Backend`. An adapter is imported only for the running backend.
"""

import functools
import importlib

import keras

from kerasmem.backends.patching import patch_method
from kerasmem.backends.protocol import Backend, GradientMeter, StepState
from kerasmem.errors import ConfigError

__all__ = [
    "Backend",
    "GradientMeter",
    "StepState",
    "current",
    "device_kind",
    "patch_method",
]

_ADAPTERS = ("jax", "tensorflow", "torch")
"""Names of the backends, and of the packages with what each has of its own."""


@functools.cache
def current() -> Backend:
    """Return the adapter of the backend that Keras runs on in this process.

    Raises:
        ConfigError: if Keras runs on a backend that kerasmem has no adapter for.

    Example:
        >>> current().name == keras.backend.backend()
        True
    """
    name = keras.backend.backend()
    if name not in _ADAPTERS:
        raise ConfigError(
            f"kerasmem works on the Keras backends {[*_ADAPTERS]}. Received: "
            f"keras.backend.backend()={name!r}. Set KERAS_BACKEND to one of them "
            "before Keras is imported."
        )
    return importlib.import_module(f"{__name__}.{name}").ADAPTER


def device_kind() -> str:
    """Return `"gpu"` if the running backend has one, else `"cpu"`."""
    return "gpu" if current().cuda_ordinals() else "cpu"
