"""Keeping pruned weights at zero while the model trains, inside the compiled step."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
from keras import ops

from kerasmem.backends import current
from kerasmem.backends.gradients import innermost
from kerasmem.compression.prune.apply import zero_out
from kerasmem.graph.values import to_numpy


class Masks:
    """Masks on some variables of a compiled model, applied after every update.

    A mask is the variable's `constraint`, behind the user's own if there is one, so
    the optimizer applies it in the same step as the update: weights are sparse at
    every moment, in every checkpoint. Moving averages that the optimizer keeps of the
    weights are masked too.

    Args:
        model: a built and compiled model.
        variables: the variables to mask; nothing is masked until `write`.
    """

    def __init__(self, model: Any, variables: Sequence[Any]) -> None:
        self._optimizer = model.optimizer
        self._variables = list(variables)
        self._states, self._undo = [], []
        for index, variable in enumerate(self._variables):
            everything = np.ones(tuple(variable.shape), bool)
            name = f"kerasmem_mask_{index}"
            state = current().step_state(model.optimizer, everything, name)
            self._states.append(state)
            self._undo.append(state.release)
            self._undo.append(_constrain(variable, state.variable))

    def write(self, masks: Sequence[np.ndarray]) -> None:
        """Set weights to zero where a mask is False, from now on."""
        averages = _moving_averages(self._optimizer)
        for variable, state, mask in zip(
            self._variables, self._states, masks, strict=True
        ):
            state.write(mask)
            zero_out(variable, mask)
            if variable.path in averages:
                zero_out(averages[variable.path], mask)

    def enforce(self) -> None:
        """Apply the masks once more, to weights that were set in another way."""
        self.write([state.read() for state in self._states])

    def release(self) -> None:
        """Let the variables change freely again; a second call is a no-op."""
        while self._undo:
            self._undo.pop()()


@contextmanager
def zeros_kept(model: Any, variables: Sequence[Any]) -> Iterator[None]:
    """Keep the entries of `variables` that are zero now at zero in training."""
    masks = Masks(model, variables)
    try:
        masks.write([to_numpy(v) != 0 for v in variables])
        model.train_function = None
        yield
        masks.enforce()
    finally:
        masks.release()
        model.train_function = None


class _Masked:
    """A variable's own constraint, or None, with masks behind it."""

    def __init__(self, own: Any) -> None:
        self.own = own
        self.masks: list[Any] = []

    def __call__(self, value: Any) -> Any:
        value = ops.convert_to_tensor(value if self.own is None else self.own(value))
        for mask in self.masks:
            kept = ops.convert_to_tensor(mask)
            value = ops.where(kept, value, ops.zeros_like(value))
        return value


def _constrain(variable: Any, mask: Any) -> Callable[[], None]:
    """Mask a variable after its own constraint; return the undo, for any order."""
    constraint = variable.constraint
    masked = constraint if isinstance(constraint, _Masked) else _Masked(constraint)
    masked.masks.append(mask)
    variable.constraint = masked

    def undo() -> None:
        masked.masks[:] = [kept for kept in masked.masks if kept is not mask]
        if not masked.masks and variable.constraint is masked:
            variable.constraint = masked.own

    return undo


def _moving_averages(optimizer: Any) -> dict[str, Any]:
    """Return the averages that an optimizer with `use_ema` keeps, by variable path."""
    inner = innermost(optimizer)
    if not getattr(inner, "use_ema", False) or not inner.built:
        return {}
    # Private: Keras gives no public way to the averages, only writes them back.
    averages = inner._model_variables_moving_average
    paths = [variable.path for variable in inner._trainable_variables]
    return {p: a for p, a in zip(paths, averages, strict=True) if a is not None}
