"""The only room in which TensorFlow, JAX and torch are imported.

`current()` returns the adapter of the backend that Keras runs on, which has what
kerasmem needs of a framework beyond Keras's public API. What is the same for two
frameworks out of three stands in the base classes; the rooms `tensorflow`, `jax` and
`torch` have the rest, and only that of the running backend is imported.
"""

import functools
import importlib
from collections.abc import Callable

import keras

from kerasmem.backends.device import DeviceBackend
from kerasmem.backends.gradients import GradientBackend
from kerasmem.backends.patching import patch_method
from kerasmem.backends.profile import Followed, MemoryProfiler
from kerasmem.backends.recompute import RecomputeBackend
from kerasmem.backends.steps import StepBackend
from kerasmem.backends.variables import StepState, VariableBackend
from kerasmem.checks import BACKENDS
from kerasmem.errors import ConfigError

__all__ = [
    "Backend",
    "StepState",
    "current",
    "device_kind",
    "patch_method",
]


class Backend(
    DeviceBackend, VariableBackend, StepBackend, GradientBackend, RecomputeBackend
):
    """The adapter of one framework."""

    name: str
    """The name Keras gives the backend, such as `"jax"`."""

    adds_along_any_axis: bool = False
    """Whether `keras.ops.add` takes an operand with one long axis for a bias, along
    whichever axis of the other one has its length."""

    recovers_logits: bool = False
    """Whether a loss of probabilities finds the logits before a float32 activation."""

    converts_models: bool = False
    """Whether the converters to LiteRT and ONNX take functions of this framework."""

    fuses_fake_quantization: bool = False
    """Whether fake quantization in a range is one operation of the framework."""

    memory_profiler: Callable[[Followed], MemoryProfiler]
    """Returns what records every allocation and free while a model trains."""


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
    if name not in BACKENDS:
        raise ConfigError(
            f"kerasmem works on the Keras backends {', '.join(BACKENDS)}. Received: "
            f"keras.backend.backend()={name!r}. Set KERAS_BACKEND to one of them "
            "before Keras is imported."
        )
    return importlib.import_module(f"{__name__}.{name}").ADAPTER


def device_kind() -> str:
    """Return `"gpu"` if the running backend has one, else `"cpu"`."""
    return "gpu" if current().cuda_ordinals() else "cpu"
