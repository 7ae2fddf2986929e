"""Adapters for TensorFlow, JAX and torch. No other package imports these frameworks.

`current()` returns the adapter of the active Keras backend, with the framework
functions that kerasmem needs beyond Keras's public API. Only the package of the active
backend (`tensorflow`, `jax` or `torch`) is imported.
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
    """Name of the Keras backend, such as `"jax"`."""

    adds_along_any_axis: bool = False
    """Whether `keras.ops.add` broadcasts a bias along any axis of matching length."""

    recovers_logits: bool = False
    """Whether losses on probabilities recover logits behind a float32 activation."""

    converts_models: bool = False
    """Whether the LiteRT and ONNX converters accept functions of this framework."""

    fuses_fake_quantization: bool = False
    """Whether fake quantization in a range is a single operation."""

    hides_layers_of_hub: bool = False
    """Whether KerasHub models do not track layers that are attributes."""

    memory_profiler: Callable[[Followed], MemoryProfiler]
    """Returns a profiler that records all allocations during training."""


@functools.cache
def current() -> Backend:
    """Return the adapter of the active Keras backend.

    Raises:
        ConfigError: If kerasmem does not support the backend.

    Example:
        >>> current().name == keras.backend.backend()
        True
    """
    name = keras.backend.backend()
    if name not in BACKENDS:
        raise ConfigError(
            f"kerasmem supports the Keras backends {', '.join(BACKENDS)}. Received: "
            f"keras.backend.backend()={name!r}. Set KERAS_BACKEND to one of them "
            "before Keras is imported."
        )
    return importlib.import_module(f"{__name__}.{name}").ADAPTER


def device_kind() -> str:
    """Return `"gpu"` if the backend has a GPU, else `"cpu"`."""
    return "gpu" if current().cuda_ordinals() else "cpu"
