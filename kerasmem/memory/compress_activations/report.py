"""The bytes that wait for the backward pass, layer by layer, and the gradient."""

from typing import Any

from kerasmem.backends.seeding import seeded
from kerasmem.errors import ConfigError
from kerasmem.graph.clone import clone, same_draws
from kerasmem.memory.compress_activations.apply import (
    compress_in_place,
    settings_of,
)
from kerasmem.memory.compress_activations.count import layer_bytes
from kerasmem.memory.compress_activations.gradient import changes, gradients
from kerasmem.memory.compress_activations.plan import plan
from kerasmem.memory.compress_activations.record import ActivationReport


def activation_report(model: Any, data: Any) -> ActivationReport:
    """Return what is stored for the backward pass of a batch, and how exact it is.

    The bytes come from the shapes of the batch. The gradient is measured, in one step
    of a copy with compressed activations and one of a copy without; `model` is left as
    it is.

    Args:
        model: a model from `compress_activations`.
        data: one batch, `x`, `(x, y)` or `(x, y, sample_weight)`, where `x` is an
            array, or a list or dict of arrays. With `y` the gradient is measured; the
            model must be compiled then.

    Raises:
        ModelError: if the model is not from `compress_activations`.
        ConfigError: if there is a `y`, but the model is not compiled.
    """
    settings = settings_of(model)
    batch = data if isinstance(data, tuple) else (data,)
    layers = layer_bytes(model, plan(model, settings.chosen, settings.seed), batch[0])
    if len(batch) == 1:
        return ActivationReport(layers)
    if not model.compiled:
        raise ConfigError(
            "The gradient needs a loss. Expected: a compiled model, or a batch without "
            f"`y`. Received: {model.name!r}, not compiled. Next: model.compile(...)."
        )
    plain, compressed = (same_draws(clone(model), model) for _ in range(2))
    compress_in_place(compressed, settings)
    found = []
    for copy in (plain, compressed):
        # The dropout of Keras on torch draws from a generator of torch's own.
        with seeded(settings.seed):
            found.append(gradients(copy, batch))
    return ActivationReport(layers, *changes(*found))
