"""Kernels that their layer divides by their norm in its forward pass."""

from collections.abc import Callable
from contextlib import ExitStack
from typing import Any

import keras

from kerasmem.backends import shadow
from kerasmem.compression.quantize.aware.weights import RoundedVariable
from kerasmem.graph.layers import sublayers


def normalize_floats(model: Any) -> Callable[[], None]:
    """Have each `SpectralNormalization` read its kernel as it is; return the undo.

    It assigns what it makes of it, so the weights that train would be rounded ones. The
    layer in it reads the kernel that was assigned, rounded.
    """
    with ExitStack() as undo:
        for layer in sublayers(model):
            kind = keras.layers.SpectralNormalization
            is_built = isinstance(layer, kind) and layer.built
            if is_built and isinstance(layer.kernel, RoundedVariable):
                for owner, rounded in ((layer, False), (layer.layer, True)):
                    call = _seeing(layer.kernel, rounded=rounded)
                    undo.callback(shadow(owner, "call", call))
        return undo.pop_all().close


def _seeing(kernel: RoundedVariable, *, rounded: bool) -> Callable[..., Any]:
    """Return what calls a layer while the kernel is read so."""

    def call(original: Any, *args: Any, **kwargs: Any) -> Any:
        with kernel.seen(rounded=rounded):
            return original(*args, **kwargs)

    return call
