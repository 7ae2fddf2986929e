"""What a model costs."""

from collections.abc import Callable, Sequence
from typing import Any

from kerasmem.compression.measure import file_bytes, latencies
from kerasmem.errors import ConfigError
from kerasmem.files.save import Coding
from kerasmem.graph.activations import peak_activation_bytes
from kerasmem.graph.channels.cost import flops
from kerasmem.graph.values import nbytes


def costs(
    names: Sequence[str],
    model: Any,
    as_floats: Any,
    coding: Coding,
    batch: tuple[Any, int],
) -> dict[str, float]:
    """Return some of the costs of a model.

    Args:
        names: of the costs.
        model: a built model.
        as_floats: the model before its weights became codes, which tells its flops.
        coding: of its file.
        batch: samples, and how many of them make a batch whose latency is measured.

    Raises:
        ConfigError: if one of the costs cannot be told.
    """
    measures: dict[str, Callable[[], float | None]] = {
        "file_bytes": lambda: file_bytes(model, coding=coding),
        "weight_bytes": lambda: sum(map(nbytes, model.weights)),
        "activation_bytes": lambda: peak_activation_bytes(model),
        "latency_ms": lambda: _latency(model, batch),
        "flops": lambda: flops(as_floats),
    }
    found = {name: measures[name]() for name in names}
    for name, value in found.items():
        if not value:
            raise ConfigError(
                f"The {name} of the model {model.name!r} cannot be told: it has no "
                "graph of layers, or an axis of open length. Received: target with "
                f"{name!r}."
            )
    return {name: float(value or 0) for name, value in found.items()}


def _latency(model: Any, batch: tuple[Any, int]) -> float | None:
    (found,) = latencies([model], *batch)
    return found.milliseconds if found else None
