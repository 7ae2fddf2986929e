"""The shape that all techniques share: a frozen choice that is applied to a clone."""

import abc
from collections.abc import Callable, Collection, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import asdict, dataclass
from typing import Any, ClassVar

from kerasmem.errors import ConfigError, did_you_mean
from kerasmem.records import WeightChange


@dataclass(frozen=True)
class Technique(abc.ABC):
    """A frozen, self-checking choice of how to make a model smaller.

    A subclass names itself in `name`, says with `trains_on` whether a fine-tuning
    follows it, with `freezes` whether its weights cannot be trained any more, and with
    `undoes` of which techniques nothing is left after it; and it implements `apply`.
    """

    name: ClassVar[str]
    trains_on: ClassVar[bool]
    freezes: ClassVar[bool] = False
    undoes: ClassVar[tuple[str, ...]] = ()

    @abc.abstractmethod
    def apply(self, model: Any, data: Any = None) -> list[WeightChange]:
        """Change `model` in place and account for every weight.

        Args:
            model: a built model.
            data: samples in any form that `kerasmem.files.data` lists, for a technique
                that looks at some; None if there are none.

        Raises:
            ModelError: if there is nothing in the model to apply this to.
        """

    def applied(self, model: Any, data: Any = None) -> tuple[Any, list[WeightChange]]:
        """Return the model with this applied, and an account of every weight.

        It is `model` itself, changed in place, unless the technique makes a new one.
        Takes and raises what `apply` does.
        """
        return model, self.apply(model, data)

    def stages(self) -> "tuple[Technique, ...]":
        """Return the steps that this consists of, with training between them."""
        return (self,)

    def preserved(self, model: Any, trainer: Any) -> AbstractContextManager[None]:
        """Return a scope in which training keeps what `apply` did to `model`.

        Args:
            model: the model that this was applied to.
            trainer: what `fit` is called on: `model`, or one that trains it.
        """
        del model, trainer
        return nullcontext()

    def to_json(self) -> dict[str, Any]:
        """Return the choice as plain data; `techniques.from_json` reads it back."""
        plain = asdict(self).items()
        lists = {k: list(v) if isinstance(v, tuple) else v for k, v in plain}
        return {"technique": self.name, **lists}

    def _check_allowed(self, allowed: Mapping[str, Collection[Any]]) -> None:
        """Raise unless every field that is named has one of its values.

        Raises:
            ConfigError: with the values, and the one received.
        """
        for field, values in allowed.items():
            if getattr(self, field) not in values:
                raise ConfigError(
                    f"The argument {field!r} of {type(self).__name__} must be one of "
                    f"{', '.join(map(str, values))}. "
                    f"Received: {field}={getattr(self, field)!r}."
                    f"{did_you_mean(getattr(self, field), map(str, values))}"
                )


@dataclass(frozen=True)
class Remake(Technique):
    """A technique that makes a new model of another form; it implements `applied`."""

    def apply(self, model: Any, data: Any = None) -> list[WeightChange]:
        """Raise: a model cannot change its form in place, see `applied`.

        Raises:
            ConfigError: always.
        """
        name = type(self).__name__
        raise ConfigError(
            f"{name} makes a new model, it cannot change one in place. Next: use "
            f"km.compress, or `model, changes = {name}(...).applied(model)`. "
            f"Received: apply({model.name!r}, data={type(data).__name__})."
        )

    @abc.abstractmethod
    def applied(self, model: Any, data: Any = None) -> tuple[Any, list[WeightChange]]:
        """Return a new model, and what became of every weight."""


@dataclass(frozen=True)
class TrainingStep(Technique):
    """A step that trains what the steps before it left."""

    def apply(self, model: Any, data: Any = None) -> list[WeightChange]:
        """Raise: training takes more than a model, see `train`.

        Raises:
            ConfigError: always.
        """
        raise ConfigError(
            f"{type(self).__name__} is a step of km.compress, it cannot be applied by "
            f"itself. Received: apply({model.name!r}, data={type(data).__name__})."
        )

    def ready(self, original: Any, data: Any, custom_objects: Any) -> "TrainingStep":
        """Return the step as it will train, with all that it needs at hand.

        Called before the first step, so that nothing is found missing after hours.

        Args:
            original: the model before the first step.
            data: samples in any form that `kerasmem.files.data` lists.
            custom_objects: the user's own layers and functions by name.
        """
        del original, data, custom_objects
        return self

    @abc.abstractmethod
    def train(
        self,
        model: Any,
        data: Any,
        kept: Callable[[Any], AbstractContextManager[Any]],
        **fit: Any,
    ) -> None:
        """Train `model` in place.

        Args:
            model: a built model, compiled if the original was.
            data: samples in any form that `kerasmem.files.data` lists.
            kept: takes what `fit` will be called on, and returns a scope in which
                training keeps what earlier steps did.
            **fit: arguments for `fit`, all but the epochs.
        """
