"""The table of techniques: what each does to a model, and its way from plain data."""

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any

from kerasmem.compression.channels import PruneChannels
from kerasmem.compression.channels.apply import prune_in_rounds
from kerasmem.compression.cluster import Cluster
from kerasmem.compression.cluster.apply import cluster_weights
from kerasmem.compression.cluster.training import preserve_clusters
from kerasmem.compression.distill import Distill
from kerasmem.compression.distill.distill import train_step, with_teacher
from kerasmem.compression.factorize import Factorize
from kerasmem.compression.factorize.apply import factorize
from kerasmem.compression.fields import from_tagged
from kerasmem.compression.prune import Prune
from kerasmem.compression.prune.apply import prune_weights
from kerasmem.compression.prune.masks import preserve_zeros
from kerasmem.compression.quantize import (
    Equalize,
    FoldBatchNorm,
    Quantize,
    ReestimateBatchNorm,
)
from kerasmem.compression.quantize.schemes import (
    check_ready,
    equalize_channels,
    fold,
    quantize,
    reestimate_statistics,
)
from kerasmem.compression.technique import Context, Technique
from kerasmem.records import WeightChange


def _nothing_to_preserve(
    config: Any, model: Any, trainer: Any
) -> AbstractContextManager[None]:
    del config, model, trainer
    return nullcontext()


@dataclass(frozen=True)
class Implementation:
    """What a technique does.

    Args:
        config: the class of its config.
        apply: takes a model, the config and a context, and returns the new model and
            one change per weight.
        preserve: takes the config, the model and what trains it, and returns a scope.
        ready: takes the config and a context, and returns the config to apply.
    """

    config: type[Technique]
    apply: Callable[[Any, Any, Context], tuple[Any, list[WeightChange]]]
    preserve: Callable[[Any, Any, Any], AbstractContextManager[None]] = (
        _nothing_to_preserve
    )
    ready: Callable[[Any, Context], Any] = lambda config, _: config


_TABLE = (
    Implementation(Prune, prune_weights, preserve_zeros),
    Implementation(PruneChannels, prune_in_rounds),
    Implementation(FoldBatchNorm, fold),
    Implementation(Equalize, equalize_channels),
    Implementation(ReestimateBatchNorm, reestimate_statistics),
    Implementation(Quantize, quantize, ready=check_ready),
    Implementation(Factorize, factorize),
    Implementation(Cluster, cluster_weights, preserve_clusters),
    Implementation(Distill, train_step, ready=with_teacher),
)

TECHNIQUES: dict[str, type[Technique]] = {row.config.name: row.config for row in _TABLE}


def implementation_of(cls: type[Technique]) -> Implementation:
    """Return what a technique, or one that is derived from it, does."""
    return next(row for row in _TABLE if issubclass(cls, row.config))


def from_json(config: dict[str, Any]) -> Technique:
    """Return the technique that `Technique.to_json` described.

    Raises:
        ConfigError: if the technique or one of its arguments is unknown.

    Example:
        >>> from_json({"technique": "quantize", "scheme": "int8"}).scheme
        'int8'
    """
    return from_tagged("A technique", TECHNIQUES, config, "technique")
