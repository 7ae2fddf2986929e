"""The one table of techniques, and their way to plain data and back."""

from dataclasses import fields
from typing import Any, get_type_hints

from kerasmem.compression.channels import PruneChannels
from kerasmem.compression.cluster import Cluster
from kerasmem.compression.distill import Distill
from kerasmem.compression.factorize import Factorize
from kerasmem.compression.prune import Prune
from kerasmem.compression.quantize import (
    Equalize,
    FoldBatchNorm,
    Quantize,
    ReestimateBatchNorm,
)
from kerasmem.compression.technique import Technique
from kerasmem.errors import ConfigError, did_you_mean
from kerasmem.records.plain import reader_of

TECHNIQUES: dict[str, type[Technique]] = {
    "prune": Prune,
    "prune_channels": PruneChannels,
    "fold_batch_norm": FoldBatchNorm,
    "equalize": Equalize,
    "reestimate_batch_norm": ReestimateBatchNorm,
    "quantize": Quantize,
    "factorize": Factorize,
    "cluster": Cluster,
    "distill": Distill,
}


def from_json(config: dict[str, Any]) -> Technique:
    """Return the technique that `Technique.to_json` told.

    Raises:
        ConfigError: if the technique or one of its arguments is unknown.

    Example:
        >>> from_json({"technique": "quantize", "scheme": "int8"}).scheme
        'int8'
    """
    arguments = dict(config)
    name = arguments.pop("technique", None)
    if not isinstance(name, str) or name not in TECHNIQUES:
        raise ConfigError(
            f"A technique is one of {', '.join(TECHNIQUES)}. "
            f"Received: technique={name!r}."
        )
    known = [field.name for field in fields(TECHNIQUES[name]) if field.init]
    if unknown := sorted(set(arguments) - set(known)):
        raise ConfigError(
            f"{name!r} takes no {unknown[0]!r}.{did_you_mean(unknown[0], known)} It "
            f"takes {', '.join(known)}."
        )
    hints = get_type_hints(TECHNIQUES[name])
    try:
        for field, value in arguments.items():
            if hints[field] in (int, bool):
                reader_of(hints[field], field)(value)
        return TECHNIQUES[name](**arguments)
    except ConfigError:
        raise
    except (TypeError, ValueError, OverflowError) as error:
        why = str(error).rstrip(".")
        raise ConfigError(f"Wrong arguments for {name!r}: {why}.") from error
