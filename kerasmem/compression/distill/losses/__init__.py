"""Distillation losses and the teacher output cache: `km.distillation`."""

from collections.abc import Sequence
from typing import Any

from kerasmem.compression.distill.cache import Cache
from kerasmem.compression.distill.losses.base import DistillationLoss
from kerasmem.compression.distill.losses.features import AttentionTransfer, Features
from kerasmem.compression.distill.losses.outputs import DIST, DKD, Logits
from kerasmem.compression.distill.losses.relations import Relational
from kerasmem.compression.fields import from_tagged
from kerasmem.errors import ConfigError

__all__ = [
    "DIST",
    "DKD",
    "AttentionTransfer",
    "Cache",
    "Features",
    "Logits",
    "Relational",
]

LOSSES: dict[str, type[DistillationLoss]] = {
    cls.name: cls
    for cls in (
        Logits,
        DKD,
        DIST,
        Features,
        AttentionTransfer,
        Relational,
    )
}


def loss_from_json(config: dict[str, Any]) -> DistillationLoss:
    """Creates a loss from the output of `DistillationLoss.to_json`.

    Raises:
        ConfigError: If the loss or one of its arguments is unknown.

    Example:
        >>> loss_from_json({"loss": "dkd", "beta": 4.0}).beta
        4.0
    """
    return from_tagged(LOSSES, config, "loss")


def as_losses(losses: Any) -> tuple[DistillationLoss, ...]:
    """Returns one or several losses from objects, names or dicts.

    Raises:
        ConfigError: If there is no loss, or an entry has another type.
    """
    single = isinstance(losses, (str, dict, DistillationLoss))
    if not single and not isinstance(losses, Sequence):
        raise _no_losses(losses)
    loss_objects = tuple(map(_as_loss, [losses] if single else losses))
    if not loss_objects:
        raise _no_losses(losses)
    return loss_objects


def _as_loss(loss: Any) -> DistillationLoss:
    if isinstance(loss, DistillationLoss):
        return loss
    if isinstance(loss, str):
        return loss_from_json({"loss": loss})
    if isinstance(loss, dict):
        return loss_from_json(loss)
    raise _no_losses(loss)


def _no_losses(losses: Any) -> ConfigError:
    return ConfigError(
        "Expected losses: one or more losses of km.distillation, such as "
        f"[Logits(temperature=4), Features()]. Received: losses={losses!r}."
    )
