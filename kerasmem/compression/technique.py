"""The contract that all techniques share: a frozen config, and a model made smaller.

This module and those of the configs import no Keras: the command line reads its options
from them.
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
    """Return a scope in which training may change everything."""
    del technique, model, trainer
    return nullcontext()


@dataclass(frozen=True)
class Context:
    """What a technique works with besides the model.

    Args:
        data: samples in any form that `kerasmem.files.data` lists; None for none.
        fit: arguments for `fit`, all but the epochs.
        epochs: epochs of fine-tuning after every technique that leaves the model
            trainable, and after every round of one that has several.
        seed: from which a chain of techniques seeds each of them; None for chance.
        custom_objects: the user's own layers and functions by name.
        original: the model before the first technique of a chain; None for the model
            that the technique is applied to.
        earlier: the techniques before this one, whose work a training preserves.
        owned: True if the model is a copy that may be changed in place.
        preserve: returns a scope in which training keeps the work of a technique; it
            takes the technique, the model and the model that `fit` is called on.
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
    """A frozen, self-checking config: how to make a model smaller.

    A subclass has fields and their checks alone. What it does to a model is its row of
    the table in `kerasmem.compression.recipe`.

    Attributes:
        name: its name in recipes and accounts.
        trains_on: whether a fine-tuning may follow it.
        trains: whether it is a training itself, which takes data.
        freezes: whether weights cannot be trained any more after it.
        undoes: names of techniques of which nothing is left after it.
    """

    tag: ClassVar[str] = "technique"
    trains_on: ClassVar[bool] = False
    trains: ClassVar[bool] = False
    freezes: ClassVar[bool] = False
    undoes: ClassVar[tuple[str, ...]] = ()


def no_samples(step: str) -> ConfigError:
    """Return the error of a training without samples.

    Args:
        step: the name of the technique.
    """
    return ConfigError(
        f"The step {step!r} learns from samples: give data=x or data=(x, y) (--data on "
        "the command line). Received: data=None."
    )
