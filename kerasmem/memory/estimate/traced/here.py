"""The estimate from a trace, in this process and on its backend."""

import importlib
from dataclasses import replace

import keras

from kerasmem.backends.trace import tracer
from kerasmem.errors import ConfigError
from kerasmem.graph.layers import sublayers
from kerasmem.memory.estimate.request import Request
from kerasmem.memory.estimate.xla import here as xla
from kerasmem.records import MemoryEstimate


def estimate_here(request: Request) -> MemoryEstimate:
    """Return the estimate from a trace on the running backend.

    The model gets an optimizer with slots, and is traced: hand in one of your own.

    Raises:
        ConfigError: if another backend is asked for than the running one.
    """
    running = keras.backend.backend()
    if request.backend != running:
        raise ConfigError(
            "A step is traced on the backend that runs it. Expected: "
            f"{running!r}. Received: backend={request.backend!r}."
        )
    request = as_keras_compiles(request)
    if running == "jax" or (running == "tensorflow" and request.jit_compile):
        return xla.estimate_here(request)
    name = f"kerasmem.memory.estimate.traced.on_{running}"
    return importlib.import_module(name).estimate_here(request)


def as_keras_compiles(request: Request) -> Request:
    """Return the request, not compiled if a layer forbids it on the device.

    Keras says so itself, with a warning, but only where the device is.
    """
    on_tensorflow_gpu = request.backend == "tensorflow" and request.device == "gpu"
    if not (request.jit_compile and on_tensorflow_gpu):
        return request
    compiles = tracer().compiles_on_gpu(sublayers(request.model))
    return replace(request, jit_compile=compiles)
