"""The contract that all techniques share: a frozen config, and a model made smaller.

This module and those of the configs import no Keras: the command line reads its options
from them.
"""

from collections.abc import Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar

from kerasmem.compression.fields import Config
from kerasmem.errors import ConfigError
from kerasmem.records import WeightChange

if TYPE_CHECKING:
    from kerasmem.compression.recipe import Implementation


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
            that `applied` is given.
        earlier: the techniques before this one, whose work a training preserves.
        owned: True if the model is a copy that may be changed in place.
    """

    data: Any = None
    fit: Mapping[str, Any] = field(default_factory=dict)
    epochs: int = 0
    seed: int | None = None
    custom_objects: dict[str, Any] | None = None
    original: Any = None
    earlier: "tuple[Technique, ...]" = ()
    owned: bool = False


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

    def applied(
        self, model: Any, context: Context | None = None
    ) -> tuple[Any, list[WeightChange]]:
        """Apply the technique to a model.

        Args:
            model: a built model; it is not changed, unless the context owns it.
            context: the data and all else to work with; None for an empty one.

        Returns:
            The new model, and a `WeightChange` for each weight: changed, or left alone
            and why.

        Raises:
            ConfigError: if the context lacks what this takes, such as data.
            ModelError: if there is nothing in the model to apply this to.
        """
        return self._implementation.apply(model, self, context or Context())

    def ready(self, context: Context) -> "Technique":
        """Return this with all that it needs at hand, such as a teacher from a file.

        A chain calls it before the first technique: nothing is found missing after
        hours.

        Args:
            context: the data and all else to work with.

        Returns:
            The technique itself, or a copy that holds what was loaded.

        Raises:
            InputError: if the context lacks what this takes, or a file cannot be
                loaded.
        """
        return self._implementation.ready(self, context)

    def preserved(self, model: Any, trainer: Any) -> AbstractContextManager[None]:
        """Return a scope in which training keeps what this did to a model.

        Args:
            model: the model that this was applied to.
            trainer: what `fit` is called on: `model`, or one that trains it.

        Returns:
            A context manager; after it the model trains as ever.
        """
        return self._implementation.preserve(self, model, trainer)

    @property
    def _implementation(self) -> "Implementation":
        # The one door upwards: a config imports neither Keras nor other rooms.
        from kerasmem.compression.recipe import implementation_of

        return implementation_of(type(self))


def no_samples(step: str) -> ConfigError:
    """Return the error of a training without samples.

    Args:
        step: the name of the technique.
    """
    return ConfigError(
        f"The step {step!r} learns from samples: give data=x or data=(x, y) (--data on "
        "the command line). Received: data=None."
    )
