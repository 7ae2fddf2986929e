"""The estimate from real steps, in this process and on its backend."""

import importlib

import keras

from kerasmem.errors import ConfigError
from kerasmem.memory.estimate.request import Request
from kerasmem.records import MemoryEstimate


def estimate_here(request: Request) -> MemoryEstimate:
    """Return the estimate from steps that run here.

    The model is trained for a few steps on zeros: hand in one of your own.

    Raises:
        ConfigError: if another backend is asked for than the running one.
    """
    running = keras.backend.backend()
    if request.backend != running:
        raise ConfigError(
            "A step runs on the running backend. Expected: "
            f"{running!r}. Received: backend={request.backend!r}."
        )
    name = f"kerasmem.memory.measure.on_{running}"
    return importlib.import_module(name).estimate_here(request)
