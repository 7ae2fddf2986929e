"""Steps that update the variables in place, without a separate state."""

from abc import abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import keras

from kerasmem.backends.gradients import around_apply
from kerasmem.backends.steps import BatchPart, GradientSum, Steps
from kerasmem.backends.variables import saved_state
from kerasmem.types import Logs, Variable


@dataclass(frozen=True)
class HostValues:
    """Variables, copies of their values, and functions that restore other state."""

    variables: list[Any]
    values: list[Any]
    put_back: list[Callable[[], None]]


class InPlaceSteps(Steps):
    """Steps of one model that update its variables in place."""

    def unpack(self, arguments: Sequence[Any]) -> tuple[Any, Iterator[Any]]:
        """Return None and the batches from the arguments of Keras's function."""
        return None, iter(arguments[0])

    def pack(self, logs: Logs, state: Any) -> Any:
        """Return the result of Keras's function."""
        return logs

    def snapshot(self, state: Any) -> HostValues:
        """Copy all values that steps change to the host."""
        variables = self._changed()
        values = [self._to_host(variable) for variable in variables]
        return HostValues(variables, values, saved_state(self._model.optimizer))

    def restore(self, snapshot: HostValues, state: Any) -> Any:
        """Restore a snapshot."""
        for variable, value in zip(snapshot.variables, snapshot.values, strict=True):
            self._put_back(variable, value)
        for put_back in snapshot.put_back:
            put_back()
        return state

    def replace_update(
        self, sums: Mapping[int, GradientSum], part: Callable[[], BatchPart | None]
    ) -> Callable[[], None]:
        """Make the optimizer accumulate gradients in micro-batch steps."""

        def apply(
            original: Callable[..., Any], gradients: list[Any], variables: list[Any]
        ) -> Any:
            now = part()
            if now is None:
                return original(gradients, variables)
            totals = [sums[id(variable)] for variable in variables]
            whole = self._add(totals, gradients, now)
            if not now.is_last:
                return None
            pairs = zip(variables, whole, strict=True)
            original(
                [None if x is None else keras.ops.cast(x, v.dtype) for v, x in pairs],
                variables,
            )
            for total in totals:
                self._clear(total)
            return None

        return around_apply(self._model.optimizer, apply)

    def _changed(self) -> list[Any]:
        model = self._model
        variables = [*model.metrics_variables, *model.non_trainable_variables]
        if self._kind == "train":
            variables += [*model.variables, *model.optimizer.variables]
        return list({id(variable): variable for variable in variables}.values())

    @abstractmethod
    def _to_host(self, variable: Variable) -> Any:
        """Return a copy of the value of a variable."""

    @abstractmethod
    def _put_back(self, variable: Variable, value: Any) -> None:
        """Restore the value of a variable from a copy."""

    @abstractmethod
    def _add(
        self, totals: Sequence[GradientSum], gradients: Sequence[Any], part: BatchPart
    ) -> Sequence[Any]:
        """Add gradients and return the sums, None for a variable without gradient."""

    @abstractmethod
    def _clear(self, total: GradientSum) -> None:
        """Reset a sum to zero."""
