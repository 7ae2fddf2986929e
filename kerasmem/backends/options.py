"""How a framework rewrites a step, spreads it over devices and feeds it."""

import itertools
from collections.abc import Mapping
from contextlib import AbstractContextManager
from typing import Any

import keras


class StepOptions:
    """What can be chosen of a step, as Keras has it on every backend.

    Attributes:
        graph_passes: passes of the graph optimizer that can be left out, from what a
            user calls them to the framework's name.
    """

    graph_passes: Mapping[str, str] = {}

    def leave_out(self, graph_pass: str) -> None:
        """Leave a pass out of what this process makes of its graphs.

        Args:
            graph_pass: one of `graph_passes`.
        """
        raise NotImplementedError(f"There is no graph optimizer: {graph_pass!r}.")

    def device_count(self, cards: int) -> int:
        """Return the number of devices to train on.

        Args:
            cards: number of GPUs.
        """
        return cards or 1

    def data_parallel(self) -> AbstractContextManager[Any]:
        """Return the scope in which a model is made that trains on every device."""
        return keras.distribution.DataParallel().scope()

    def repeated(self, batch: Any) -> Any:
        """Return what gives `fit` the same batch again and again."""
        return (batch for _ in itertools.repeat(None))
