"""What a compression does to a model: steps that are given, or a search for them."""

import abc
from dataclasses import dataclass
from typing import Any

from kerasmem.compression.stages import Training
from kerasmem.compression.technique import Technique
from kerasmem.files.save import Coding
from kerasmem.records import SearchReport, WeightChange


@dataclass(frozen=True)
class Done:
    """What came of a job.

    Args:
        model: the new model.
        steps: the techniques that made it.
        changes: the account of its weights.
        search: how the steps were found; None if they were given.
    """

    model: Any
    steps: tuple[Technique, ...]
    changes: list[WeightChange]
    search: SearchReport | None = None


class Job(abc.ABC):
    """One way from a model to a smaller one."""

    epochs: int
    """Of fine-tuning, unless the caller says otherwise."""
    coding: Coding
    """Of the file, unless the caller says otherwise."""

    @abc.abstractmethod
    def check(self, data: Any, validation_data: Any, epochs: int) -> None:
        """Raise before any work if the arguments do not fit together.

        Args:
            data: samples to learn from; None for none.
            validation_data: samples to judge the result by; None for none.
            epochs: of fine-tuning.

        Raises:
            ConfigError: if they do not.
        """

    @abc.abstractmethod
    def run(
        self, original: Any, training: Training, coding: Coding, validation_data: Any
    ) -> Done:
        """Return the new model.

        Args:
            original: the model; it is not changed.
            training: what is trained on and how.
            coding: of the file.
            validation_data: of which no sample is looked at.
        """

    @abc.abstractmethod
    def judge(self, result: Any) -> None:
        """Raise unless a `CompressionResult` is what was asked for.

        Raises:
            KerasMemError: of the kind that this way has.
        """
