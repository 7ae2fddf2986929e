"""What a model costs with some of its channels, as a share of what it costs now."""

from collections.abc import Callable
from typing import Any

from kerasmem.compression.measure import latencies
from kerasmem.errors import ConfigError
from kerasmem.graph.activations import peak_of, sizes_of
from kerasmem.graph.channels import Kept, LabelledModel
from kerasmem.graph.channels.cost import everything, multiplications, parameters
from kerasmem.graph.channels.narrow import Narrow
from kerasmem.graph.nodes import trace
from kerasmem.graph.rebuild import Rebuild

Left = Callable[[Kept], float]
"""Returns the share of a cost that is left."""


def parameters_left(model: Any, found: LabelledModel, data: Any) -> Left:
    """Return what counts the entries of all weights."""
    del model, data
    whole = parameters(found, everything(found))
    return lambda kept: parameters(found, kept) / whole


def multiplications_left(model: Any, found: LabelledModel, data: Any) -> Left:
    """Return what counts multiplications with kernels."""
    del model, data
    whole = multiplications(found, everything(found))
    return lambda kept: multiplications(found, kept) / whole


def memory_left(model: Any, found: LabelledModel, data: Any) -> Left:
    """Return what estimates the most bytes of layer outputs alive at once.

    Of one sample, in inference; see `kerasmem.graph.activations`.

    Raises:
        ConfigError: if the model has axes of unknown length.
    """
    del data
    traced = trace(model, 1)
    whole = None if traced is None else peak_of(traced, sizes_of(traced))
    if traced is None or whole is None:
        raise ConfigError(
            f"The activations of the model {model.name!r} have axes of unknown length, "
            "so their bytes are not known. Give its Input a shape, or another `of`. "
            "Received: of='memory'."
        )
    sizes = sizes_of(traced)

    def left(kept: Kept) -> float:
        smaller = dict(sizes)
        for call in traced.calls:
            made = found.calls[id(call.nodes[-1])].made if call.nodes else []
            for tensor, labelled in zip(call.outputs, made, strict=False):
                size = sizes[id(tensor)] or 0
                for old, new in zip(labelled.shape, kept.shape(labelled), strict=True):
                    size = size if old == new else size // (old or 1) * (new or 1)
                smaller[id(tensor)] = size
        return (peak_of(traced, smaller) or 0) / whole

    return left


def latency_left(model: Any, found: LabelledModel, data: Any) -> Left:
    """Return what measures the time of a forward pass, of models that are really made.

    The smaller model and a copy of the whole one take turns.

    Raises:
        ConfigError: if the model has axes of unknown length and there is no data.
    """
    whole = Rebuild(Narrow(found, everything(found))).run(model)

    def left(kept: Kept) -> float:
        smaller = Rebuild(Narrow(found, kept)).run(model)
        before, after = latencies([whole, smaller], data)
        if before is None or after is None:
            raise ConfigError(
                f"The inputs of the model {model.name!r} have axes of unknown length, "
                "so its latency cannot be measured. Give samples as data=. Received: "
                "of='latency', data=None."
            )
        return after.milliseconds / before.milliseconds

    return left


MEASURES = {
    "parameters": parameters_left,
    "multiplications": multiplications_left,
    "memory": memory_left,
    "latency": latency_left,
}
