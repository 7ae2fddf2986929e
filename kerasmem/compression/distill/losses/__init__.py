"""What a student can learn from its teacher: one file per loss, one table of all."""

from collections.abc import Sequence
from typing import Any

from kerasmem.compression.distill.losses.attention_transfer import AttentionTransfer
from kerasmem.compression.distill.losses.base import (
    Answers,
    DistillationLoss,
    FeatureLoss,
    OutputLoss,
)
from kerasmem.compression.distill.losses.contrastive import Contrastive
from kerasmem.compression.distill.losses.correlation import Correlation
from kerasmem.compression.distill.losses.dist import DIST
from kerasmem.compression.distill.losses.dkd import DKD
from kerasmem.compression.distill.losses.features import Features
from kerasmem.compression.distill.losses.logits import Logits
from kerasmem.compression.distill.losses.probabilistic import (
    ProbabilisticKnowledgeTransfer,
)
from kerasmem.compression.distill.losses.relational import Relational
from kerasmem.compression.distill.losses.similarity_preserving import (
    SimilarityPreserving,
)
from kerasmem.errors import ConfigError, did_you_mean

__all__ = [
    "DIST",
    "DKD",
    "LOSSES",
    "Answers",
    "AttentionTransfer",
    "Contrastive",
    "Correlation",
    "DistillationLoss",
    "FeatureLoss",
    "Features",
    "Logits",
    "OutputLoss",
    "ProbabilisticKnowledgeTransfer",
    "Relational",
    "SimilarityPreserving",
    "as_losses",
    "loss_from_json",
]

LOSSES: dict[str, type[DistillationLoss]] = {
    cls.name: cls
    for cls in (
        Logits,
        DKD,
        DIST,
        Features,
        AttentionTransfer,
        SimilarityPreserving,
        Relational,
        Correlation,
        Contrastive,
        ProbabilisticKnowledgeTransfer,
    )
}


def loss_from_json(config: dict[str, Any]) -> DistillationLoss:
    """Return the loss that `DistillationLoss.to_json` told.

    Raises:
        ConfigError: if the loss or one of its arguments is unknown.

    Example:
        >>> loss_from_json({"loss": "dkd", "beta": 4.0}).beta
        4.0
    """
    arguments = dict(config)
    name = arguments.pop("loss", None)
    if name not in LOSSES:
        raise ConfigError(
            f"A distillation loss is one of {', '.join(LOSSES)}. "
            f"Received: loss={name!r}.{did_you_mean(name, LOSSES)}"
        )
    try:
        return LOSSES[name](**arguments)
    except TypeError as error:
        raise ConfigError(f"Wrong arguments for {name!r}: {error}.") from error


def as_losses(losses: Any) -> tuple[DistillationLoss, ...]:
    """Return one or several losses, given as objects, names or plain data.

    Raises:
        ConfigError: if there is none, or something else among them.
    """
    single = isinstance(losses, (str, dict, DistillationLoss))
    if not single and not isinstance(losses, Sequence):
        raise _no_losses(losses)
    found = tuple(map(_as_loss, [losses] if single else losses))
    if not found:
        raise _no_losses(losses)
    return found


def _as_loss(given: Any) -> DistillationLoss:
    if isinstance(given, DistillationLoss):
        return given
    if isinstance(given, str):
        return loss_from_json({"loss": given})
    if isinstance(given, dict):
        return loss_from_json(given)
    raise _no_losses(given)


def _no_losses(given: Any) -> ConfigError:
    return ConfigError(
        "The losses of a distillation are one or more of km.distillation, such as "
        f"[Logits(temperature=4), Features()]. Received: losses={given!r}."
    )
