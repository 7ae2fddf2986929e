"""Base class of all techniques: a frozen config.

This module and the configs do not import Keras, because the command line reads its
options from them.
"""

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from typing import Any, ClassVar

from kerasmem.compression.fields import Config
from kerasmem.errors import ConfigError


def preserve_nothing(
    technique: "Technique", model: Any, trainer: Any
) -> AbstractContextManager[None]:
    """Returns a scope in which training may change all weights."""
    del technique, model, trainer
    return nullcontext()


@dataclass(frozen=True)
class Context:
    """Data and settings of a technique.

    Args:
        data: Samples in any form that `kerasmem.files.data` supports, or `None`.
        fit: Arguments of `fit` except for the epochs.
        epochs: Epochs of fine-tuning after each technique that leaves the model
            trainable, and after each round of an iterative technique.
        seed: Seed of a chain, from which each technique gets a seed, or `None`.
        custom_objects: Custom layers and functions by name.
        original: The model before the chain. `None` for the input of the technique.
        earlier: Earlier techniques, whose effect training must preserve.
        owned: Whether the model may be changed in place.
        preserve: Function of a technique, the model and the trained model. Returns a
            scope in which training preserves the effect of the technique.
    """

    data: Any = None
    fit: Mapping[str, Any] = field(default_factory=dict)
    epochs: int = 0
    seed: int | None = None
    custom_objects: dict[str, Any] | None = None
    original: Any = None
    earlier: "tuple[Technique, ...]" = ()
    owned: bool = False
    preserve: Callable[["Technique", Any, Any], AbstractContextManager[None]] = (
        preserve_nothing
    )


@dataclass(frozen=True)
class Technique(Config):
    """A frozen config of a compression technique.

    A subclass only has fields and their checks. Its implementation is a row of the
    table in `kerasmem.compression.recipe`.

    Attributes:
        name: Name in recipes and reports.
        trains_on: Whether fine-tuning can follow.
        trains: Whether the technique trains and needs data.
        freezes: Whether weights are untrainable afterwards.
        undoes: Names of techniques that it undoes.
    """

    tag: ClassVar[str] = "technique"
    trains_on: ClassVar[bool] = False
    trains: ClassVar[bool] = False
    freezes: ClassVar[bool] = False
    undoes: ClassVar[tuple[str, ...]] = ()


def no_samples(step: str) -> ConfigError:
    """Returns the error for a technique that trains without samples."""
    return ConfigError(
        f"The step {step!r} needs training samples. Received: data=None. Next: give "
        "data=x or data=(x, y) (--data on the command line)."
    )
