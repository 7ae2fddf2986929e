"""What a model costs, and what it may cost at most."""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from numbers import Real
from typing import Any

from kerasmem.compression.measure import file_bytes, latencies
from kerasmem.errors import ConfigError, did_you_mean
from kerasmem.files.save import Coding
from kerasmem.graph.activations import peak_activation_bytes
from kerasmem.graph.channels.cost import flops
from kerasmem.graph.values import nbytes
from kerasmem.units import format_bytes, parse_bytes

COSTS = ("file_bytes", "weight_bytes", "activation_bytes", "latency_ms", "flops")


@dataclass(frozen=True)
class Target:
    """The most that a model may cost, by the name of the cost.

    Args:
        limits: on some of `COSTS`, above 0; empty for as small a file as possible.
    """

    limits: dict[str, float]

    @classmethod
    def of(cls, given: Any) -> "Target":
        """Return the target that a caller means.

        Args:
            given: numbers by the name of a cost, sizes also as text like `"200KiB"`;
                None for no limit.

        Raises:
            ConfigError: if a name is unknown, or a limit is no number above 0.

        Example:
            >>> Target.of({"file_bytes": "2KiB", "latency_ms": 1.5}).limits
            {'file_bytes': 2048.0, 'latency_ms': 1.5}
        """
        if given is None:
            return cls({})
        if not isinstance(given, Mapping) or not given:
            raise ConfigError(
                f"A target is a dict of limits on some of {', '.join(COSTS)}. "
                f"Received: target={given!r}."
            )
        return cls({name: _limit(name, value) for name, value in given.items()})

    @property
    def costs(self) -> tuple[str, ...]:
        """Names of the costs that matter."""
        return tuple(self.limits) or ("file_bytes",)

    def over(self, costs: Mapping[str, float]) -> float:
        """Return the largest cost as a share of its limit.

        Example:
            >>> Target({"file_bytes": 100.0, "flops": 10.0}).over(
            ...     {"file_bytes": 50.0, "flops": 20.0}
            ... )
            2.0
        """
        return max(costs[name] / limit for name, limit in self.limits.items())


def cost_text(name: str, value: float) -> str:
    """Return a cost with its name and unit.

    Example:
        >>> cost_text("file_bytes", 2048.0)
        'file_bytes 2.00 KiB'
    """
    return f"{name} {cost_value(name, value)}"


def cost_value(name: str, value: float) -> str:
    """Return a cost with its unit."""
    if name.endswith("_bytes"):
        return format_bytes(round(value))
    return f"{value:,.4g}" if value < 1e4 else f"{value:,.0f}"


def _limit(name: Any, value: Any) -> float:
    if name not in COSTS:
        raise ConfigError(
            f"There is no cost {name!r} to limit.{did_you_mean(name, COSTS)} A target "
            f"limits {', '.join(COSTS)}."
        )
    is_size = name.endswith("_bytes")
    limit = parse_bytes(value) if is_size and isinstance(value, str) else value
    is_number = isinstance(limit, Real) and not isinstance(limit, bool)
    if not is_number or not 0 < float(limit) < math.inf:
        text = ' or a text such as "200KiB"' if is_size else ""
        raise ConfigError(
            f"A limit is a number above 0{text}. Received: {name}={value!r}."
        )
    return float(limit)


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
