"""Costs of a model, their limits, and the technique families of a search."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from kerasmem.checks import OneOf, Real, invalid
from kerasmem.compression.channels import PruneChannels
from kerasmem.compression.cluster import Cluster
from kerasmem.compression.factorize import Factorize
from kerasmem.compression.measure import latencies, size_of
from kerasmem.compression.prune import Prune
from kerasmem.compression.quantize import Quantize
from kerasmem.compression.technique import Technique
from kerasmem.errors import ConfigError
from kerasmem.files.save import Coding
from kerasmem.graph.activations import peak_activation_bytes
from kerasmem.graph.channels.cost import flops
from kerasmem.graph.values import nbytes
from kerasmem.types import Model
from kerasmem.units import format_bytes, parse_bytes

COSTS = ("file_bytes", "weight_bytes", "activation_bytes", "latency_ms", "flops")


@dataclass(frozen=True)
class Target:
    """Upper limits on the costs of a model.

    Without limits, a search minimizes the file size.
    """

    limits: dict[str, float]

    @classmethod
    def of(cls, limits: Any) -> "Target":
        """Creates a target from the argument of `compress`.

        Raises:
            ConfigError: If a name is unknown, or a limit is not a positive number.

        Example:
            >>> Target.of({"file_bytes": "2KiB", "latency_ms": 1.5}).limits
            {'file_bytes': 2048.0, 'latency_ms': 1.5}
        """
        if limits is None:
            return cls({})
        if not isinstance(limits, Mapping) or not limits:
            valid = f"a dict of limits on some of {', '.join(COSTS)}"
            raise invalid("compress", "target", limits, valid)
        return cls({name: _limit(name, value) for name, value in limits.items()})

    @property
    def costs(self) -> tuple[str, ...]:
        """Names of the costs to compute."""
        return tuple(self.limits) or ("file_bytes",)

    def over(self, costs: Mapping[str, float]) -> float:
        """Returns the largest ratio of a cost to its limit.

        Example:
            >>> Target({"file_bytes": 100.0, "flops": 10.0}).over(
            ...     {"file_bytes": 50.0, "flops": 20.0}
            ... )
            2.0
        """
        return max(costs[name] / limit for name, limit in self.limits.items())


def cost_text(name: str, value: float) -> str:
    """Formats a cost with its name and unit.

    Example:
        >>> cost_text("file_bytes", 2048.0)
        'file_bytes 2.00 KiB'
    """
    return f"{name} {cost_value(name, value)}"


def cost_value(name: str, value: float) -> str:
    """Formats a cost with its unit."""
    if name.endswith("_bytes"):
        return format_bytes(round(value))
    return f"{value:,.4g}" if value < 1e4 else f"{value:,.0f}"


def _limit(name: Any, value: Any) -> float:
    OneOf(tuple(COSTS)).check("compress", "target", name)
    is_size = name.endswith("_bytes")
    is_text = is_size and isinstance(value, str)
    limit = parse_bytes(value, "target", name) if is_text else value
    if is_size:
        rule = Real('a number of bytes or a text such as "200KiB",', least=1)
    else:
        rule = Real(above=0)
    return float(rule.check("target", name, limit))


def costs(
    names: Sequence[str],
    model: Model,
    as_floats: Any,
    coding: Coding,
    batch: tuple[Any, int],
) -> dict[str, float]:
    """Returns costs of a model by name.

    `as_floats` is the model before quantization, for its FLOPs. `batch` contains
    samples and the batch size, for the latency.

    Raises:
        ConfigError: If a cost cannot be computed.
    """
    measures: dict[str, Callable[[], float | None]] = {
        "file_bytes": lambda: size_of(model, coding=coding).file_bytes,
        "weight_bytes": lambda: sum(map(nbytes, model.weights)),
        "activation_bytes": lambda: peak_activation_bytes(model),
        "latency_ms": lambda: latencies([model], *batch)[0].get("latency_ms"),
        "flops": lambda: flops(as_floats),
    }
    values = {name: measures[name]() for name in names}
    for name, value in values.items():
        if not value:
            raise ConfigError(
                f"Cannot compute {name} of the model {model.name!r}, because it has no "
                "graph of layers or has dynamic axes. Received: target with "
                f"{name!r}."
            )
    return {name: float(value or 0) for name, value in values.items()}


_OF = {
    "activation_bytes": "memory",
    "latency_ms": "multiplications",
    "flops": "multiplications",
}
"""Quantity that channel pruning reduces, by cost. Defaults to parameters."""


@dataclass(frozen=True)
class AdjustableTechnique:
    """A technique with an adjustable strength.

    `make` creates the technique from the fraction of the model to keep. This fraction
    is `least` at full strength (`None` for a fixed strength) and `most` at zero
    strength.
    """

    name: str
    make: Callable[[float], Technique]
    least: float | None = None
    most: float = 1.0


@dataclass(frozen=True)
class TechniqueFamily:
    """Techniques in sequence with a common strength."""

    parts: tuple[AdjustableTechnique, ...]

    @property
    def name(self) -> str:
        """Names of the techniques."""
        return ", ".join(part.name for part in self.parts)

    @property
    def has_strength(self) -> bool:
        """Whether the strength is adjustable."""
        return any(part.least is not None for part in self.parts)

    @property
    def trains(self) -> bool:
        """Whether fine-tuning can follow a technique."""
        return any(step.trains_on for step in self.at(1.0))

    def at(self, strength: float) -> tuple[Technique, ...]:
        """Returns the techniques for a strength in [0, 1].

        The kept fraction decreases exponentially with the strength and is divided among
        the techniques. At strength 0, techniques without effect are left out.
        """
        share = strength / max(sum(part.least is not None for part in self.parts), 1)
        return tuple(
            part.make(part.most * ((part.least or 1.0) / part.most) ** share)
            for part in self.parts
            if share > 0 or part.least is None or part.most < 1
        )


def families(costs: Sequence[str]) -> tuple[TechniqueFamily, ...]:
    """Returns the technique families for costs, the most important cost first."""
    of = _OF.get(costs[0], "parameters")
    channels = AdjustableTechnique(
        "channels", lambda share: PruneChannels(1 - share, of=of, scope="global"), 0.05
    )
    prune = AdjustableTechnique(
        "prune", lambda share: Prune(1 - share, scope="global"), 0.02
    )
    # At half rank, two factors are about as large as the kernel.
    factorize = AdjustableTechnique("factorize", Factorize, 0.03, 0.5)
    cluster = AdjustableTechnique("cluster", lambda _: Cluster(16))
    float16, int8, int4 = (
        AdjustableTechnique(scheme, lambda _, scheme=scheme: Quantize(scheme))
        for scheme in ("float16", "int8", "int4")
    )
    return tuple(
        map(
            TechniqueFamily,
            (
                (float16,),
                (int8,),
                (int4,),
                (cluster,),
                (prune,),
                (prune, int8),
                (prune, cluster),
                (factorize,),
                (factorize, int8),
                (channels,),
                (channels, int8),
                (channels, prune, int8),
            ),
        )
    )
