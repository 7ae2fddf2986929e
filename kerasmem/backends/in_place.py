"""What the steps of two frameworks out of three have in common."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any

from kerasmem.backends import splitting
from kerasmem.backends.gradients import around_apply
from kerasmem.backends.steps import GradientSum, Part, copied_state


class LocalBatches(ABC):
    """Steps that are given all of a batch as arrays of this process."""

    def split(self, batch: Any, parts: int) -> list[Any]:
        """Return a batch in so many parts, of nearly one size."""
        return splitting.split(batch, parts)

    def size(self, batch: Any) -> int:
        """Return the number of samples, 1 if the batch cannot be split."""
        return splitting.splittable_length(batch)

    def shape(self, batch: Any) -> tuple[int, ...]:
        """Return the lengths of all axes of all arrays in a batch."""
        return splitting.axes_of(batch)

    def weigh(
        self, parts: Sequence[Any], valid: Sequence[Any] | None
    ) -> list[tuple[Any, Any]]:
        """Return each part with what it counts, see `splitting.weights`."""
        lengths = [splitting.length_of(part) for part in parts]
        counted = None if valid is None else [self._to_array(each) for each in valid]
        weights = splitting.weights(lengths, counted)
        return [
            (part, self._to_tensors(*each))
            for part, each in zip(parts, weights, strict=True)
        ]

    def scope(self) -> AbstractContextManager[Any]:
        """Return a scope that does nothing."""
        return nullcontext()

    @abstractmethod
    def _to_array(self, count: Any) -> Any:
        """Return what `counting` gave as an array of NumPy."""

    @abstractmethod
    def _to_tensors(self, share: Any, factors: Any) -> tuple[Any, Any]:
        """Return what a part counts as a step takes it."""


@dataclass(frozen=True)
class HostValues:
    """Variables, a copy of their values, and what puts back all that rides along."""

    variables: list[Any]
    values: list[Any]
    put_back: list[Callable[[], None]]


class InPlaceSteps(ABC):
    """Steps that change the variables as they go: there is no state beside them.

    Args:
        model: the compiled model.
    """

    def __init__(self, model: Any) -> None:
        self._model = model

    def unpack(self, arguments: Sequence[Any]) -> tuple[Any, Iterator[Any]]:
        """Return no state, and batches of what Keras gave its function."""
        return None, iter(arguments[0])

    def pack(self, logs: Any, state: Any) -> Any:
        """Return what Keras expects of its function."""
        return logs

    def snapshot(self, state: Any) -> HostValues:
        """Return a copy of what a step may change."""
        variables = self._changed()
        values = [self._to_host(variable) for variable in variables]
        return HostValues(variables, values, copied_state(self._model.optimizer))

    def restore(self, snapshot: HostValues, state: Any) -> Any:
        """Put back what `snapshot` has."""
        for variable, value in zip(snapshot.variables, snapshot.values, strict=True):
            self._put_back(variable, value)
        for put_back in snapshot.put_back:
            put_back()
        return state

    def is_intact(self, state: Any) -> bool:
        """Return False: a step changes variables as it goes."""
        return False

    def give_up(self, state: Any) -> None:  # noqa: B027 - nothing to do is the rule
        """Do nothing: the variables hold the state."""

    def values(self, state: Any) -> AbstractContextManager[Any]:
        """Return a scope that does nothing: the variables hold the state."""
        return nullcontext()

    @abstractmethod
    def _changed(self) -> list[Any]:
        """Return the variables that a step may change."""

    @abstractmethod
    def _to_host(self, variable: Any) -> Any:
        """Return a copy of a variable's value."""

    @abstractmethod
    def _put_back(self, variable: Any, value: Any) -> None:
        """Give a variable the value of a copy."""


class InPlaceTraining(InPlaceSteps):
    """Training steps that change the variables as they go."""

    def replace_update(
        self, sums: Mapping[int, GradientSum], part: Callable[[], Part | None]
    ) -> Callable[[], None]:
        """Have the optimizer add up gradients in steps that run a part of a batch."""

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
                [None if x is None else self._as_dtype_of(v, x) for v, x in pairs],
                variables,
            )
            for total in totals:
                self._clear(total)
            return None

        return around_apply(self._model.optimizer, apply)

    def adopt(self, state: Any, variables: Sequence[Any]) -> Any:
        """Return no state."""
        return state

    @abstractmethod
    def _add(
        self, totals: Sequence[GradientSum], gradients: Sequence[Any], part: Part
    ) -> Sequence[Any]:
        """Add a part's gradients; return the sums, None for one with no gradient."""

    @abstractmethod
    def _as_dtype_of(self, variable: Any, total: Any) -> Any:
        """Return a sum in the dtype of a variable."""

    @abstractmethod
    def _clear(self, total: GradientSum) -> None:
        """Have a sum start from zero again."""
