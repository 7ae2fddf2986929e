"""Compressions that a search tries: which techniques, and how much of them."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from kerasmem.compression.channels import PruneChannels
from kerasmem.compression.cluster import Cluster
from kerasmem.compression.factorize import Factorize
from kerasmem.compression.prune import Prune
from kerasmem.compression.quantize import Quantize
from kerasmem.compression.technique import Technique

_OF = {
    "activation_bytes": "memory",
    "latency_ms": "multiplications",
    "flops": "multiplications",
}
"""What channels are removed by, so that a cost falls; parameters for the others."""


@dataclass(frozen=True)
class Part:
    """A technique of which there may be more or less.

    Args:
        name: what it is called.
        make: makes it, from the share of the model that stays.
        least: that share at full strength; None if there is only one strength.
        most: that share at next to none.
    """

    name: str
    make: Callable[[float], Technique]
    least: float | None = None
    most: float = 1.0


@dataclass(frozen=True)
class Family:
    """Techniques in order, with one strength for all that have one.

    Args:
        parts: the techniques.
    """

    parts: tuple[Part, ...]

    @property
    def name(self) -> str:
        """The techniques in words."""
        return ", ".join(part.name for part in self.parts)

    @property
    def has_strength(self) -> bool:
        """Whether there is more or less of it."""
        return any(part.least is not None for part in self.parts)

    @property
    def trains(self) -> bool:
        """Whether fine-tuning helps any of it."""
        return any(step.trains_on for step in self.at(1.0))

    def at(self, strength: float) -> tuple[Technique, ...]:
        """Return the techniques of a strength from 0 to 1.

        What stays of the model shrinks by equal factors in equal steps of strength.
        Several techniques share it: each takes a part of the whole factor. At strength
        0, techniques by which nothing would go are left out.
        """
        share = strength / max(sum(part.least is not None for part in self.parts), 1)
        return tuple(
            part.make(part.most * ((part.least or 1.0) / part.most) ** share)
            for part in self.parts
            if share > 0 or part.least is None or part.most < 1
        )


def families(costs: Sequence[str]) -> tuple[Family, ...]:
    """Return the families that a search tries.

    Args:
        costs: names of what is to become less, the most important first.
    """
    of = _OF.get(costs[0], "parameters")
    channels = Part(
        "channels", lambda kept: PruneChannels(1 - kept, of=of, scope="global"), 0.05
    )
    prune = Part("prune", lambda kept: Prune(1 - kept, scope="global"), 0.02)
    # A rank of half the full one is about where two factors are smaller than a kernel.
    factorize = Part("factorize", Factorize, 0.03, 0.5)
    cluster = Part("cluster", lambda _: Cluster(16))
    float16, int8, int4 = (
        Part(scheme, lambda _, scheme=scheme: Quantize(scheme))
        for scheme in ("float16", "int8", "int4")
    )
    return tuple(
        map(
            Family,
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
