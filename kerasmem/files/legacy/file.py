"""What every file of Keras 2 holds, whichever its format."""

from dataclasses import dataclass
from typing import Any, Protocol

from kerasmem.files.legacy.assign import Assignment
from kerasmem.files.legacy.made import Made


class Weights(Protocol):
    """The weights of a file."""

    def put_into(self, model: Made, assignment: Assignment) -> None:
        """Put them into the layers of a model."""
        ...


@dataclass(frozen=True)
class LegacyFile:
    """A model of Keras 2 as its file has it.

    Args:
        config: `class_name` and `config` of the model.
        training: loss, metrics and optimizer, None for a model that was not compiled.
        weights: to be put into the model that is made of the config.
    """

    config: dict[str, Any]
    training: dict[str, Any] | None
    weights: Weights
