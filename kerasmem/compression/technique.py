"""The shape that all techniques share: a frozen choice that is applied to a clone."""

import abc
from contextlib import AbstractContextManager, nullcontext
from dataclasses import asdict, dataclass
from typing import Any, ClassVar

from kerasmem.records import WeightChange


@dataclass(frozen=True)
class Technique(abc.ABC):
    """A frozen, self-checking choice of how to make a model smaller.

    A subclass names itself in `name`, says with `trains_on` whether the model can be
    fine-tuned after it, and implements `apply`.
    """

    name: ClassVar[str]
    trains_on: ClassVar[bool]

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

    def preserved(self, model: Any) -> AbstractContextManager[None]:
        """Return a scope in which training keeps what `apply` did to `model`."""
        del model
        return nullcontext()

    def to_json(self) -> dict[str, Any]:
        """Return the choice as plain data; `techniques.from_json` reads it back."""
        return {"technique": self.name, **asdict(self)}
