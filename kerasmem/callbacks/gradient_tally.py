"""Adding up, inside the compiled step, what an epoch's gradients looked like.

The state is one float32 matrix: row 0 is the whole gradient, row i + 1 the gradient of
variable i. Every column but the last is a running sum over the steps.
"""

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
from keras import ops

from kerasmem import backends
from kerasmem.records import GradientRecord, VariableGradient

NORM, ZEROS, NONFINITE, STEPS, LARGEST = range(5)
SKIPPED = ZEROS  # row 0 has no use for a share of zeros


class GradientTally:
    """Watches the updates of one `fit`.

    Args:
        model: the compiled model.
        every: number of updates between two with per-variable statistics, from 1; 0
            for no such statistics.
    """

    def __init__(self, model: Any, every: int) -> None:
        self._model = model
        self._optimizer = model.optimizer
        self._every = every
        self._backend = backends.current()
        self._state: backends.StepState | None = None
        self._paths: list[str] = []
        self._row_of: dict[int, int] = {}
        if model.built:
            self._prepare()

    def observe(self, gradients: Sequence[Any], variables: Sequence[Any]) -> None:
        """Add one update; called while the step is traced, or in it on torch."""
        with self._backend.inference():
            state = self._prepare()
            rows = [_whole_row(self._backend.global_norm(gradients))]
            rows.append(self._variable_rows(state, gradients, variables))
            self._add(state, ops.concatenate(rows, axis=0))

    def observe_finite(self, finite: Any) -> None:
        """Count one step as skipped if its gradient was not finite."""
        with self._backend.inference():
            state = self._prepare()
            skipped = 1.0 - ops.cast(finite, "float32")
            zero = ops.zeros_like(skipped)
            row = ops.stack([zero, skipped, zero, zero, zero])[None]
            self._add(state, ops.concatenate([row, self._no_rows()], axis=0))

    def clear(self) -> None:
        """Start a new epoch."""
        if self._state is not None:
            self._state.write(np.zeros((1 + len(self._paths), 5), "float32"))

    def record(self, epoch: int) -> GradientRecord | None:
        """Return the figures since `clear()`, None if no step was seen."""
        if self._state is None:
            return None
        whole, *rows = self._state.read().tolist()
        if whole[STEPS] + whole[SKIPPED] == 0:
            return None
        finite_steps = whole[STEPS] - whole[NONFINITE]
        return GradientRecord(
            epoch=epoch,
            steps=round(whole[STEPS]),
            norm=whole[NORM] / finite_steps if finite_steps else math.nan,
            norm_max=whole[LARGEST] if finite_steps else math.nan,
            nonfinite_steps=round(whole[NONFINITE] + whole[SKIPPED]),
            variables=tuple(
                _variable_record(path, row)
                for path, row in zip(self._paths, rows, strict=True)
                if row[STEPS]
            ),
        )

    def release(self) -> None:
        """Take the state out of the optimizer."""
        if self._state is not None:
            self._state.release()

    def _prepare(self) -> backends.StepState:
        # A subclassed model has no variables before its first step on TensorFlow.
        if self._state is None:
            watched = self._model.trainable_variables if self._every else []
            self._paths = [variable.path for variable in watched]
            self._row_of = {id(v): index for index, v in enumerate(watched)}
            zeros = np.zeros((1 + len(watched), 5), "float32")
            self._state = self._backend.step_state(
                self._optimizer, zeros, "kerasmem_gradients"
            )
        return self._state

    def _variable_rows(
        self,
        state: backends.StepState,
        gradients: Sequence[Any],
        variables: Sequence[Any],
    ) -> Any:
        if not self._every:
            return self._no_rows()

        def compute() -> Any:
            rows = [ops.zeros((5,), "float32")] * len(self._paths)
            for gradient, variable in zip(gradients, variables, strict=True):
                if id(variable) in self._row_of:
                    values = self._backend.summed(gradient)
                    row = _variable_row(values, math.prod(variable.shape))
                    rows[self._row_of[id(variable)]] = row
            return ops.stack(rows)

        if self._every == 1:
            return compute()
        is_due = ops.equal(ops.mod(state.variable.value[0, STEPS], self._every), 0)
        return ops.cond(is_due, compute, self._no_rows)

    def _no_rows(self) -> Any:
        return ops.zeros((len(self._paths), 5), "float32")

    def _add(self, state: backends.StepState, new: Any) -> None:
        old = ops.convert_to_tensor(state.variable)
        sums = old[:, :LARGEST] + new[:, :LARGEST]
        largest = ops.maximum(old[:, LARGEST:], new[:, LARGEST:])
        state.variable.assign(ops.concatenate([sums, largest], axis=1))


def _whole_row(norm: Any) -> Any:
    is_finite = ops.isfinite(norm)
    zero, one = ops.zeros_like(norm), ops.ones_like(norm)
    kept = ops.where(is_finite, norm, zero)
    nonfinite = ops.where(is_finite, zero, one)
    return ops.stack([kept, zero, nonfinite, one, kept])[None]


def _variable_row(values: Any, size: int) -> Any:
    values = ops.cast(values, "float32")
    is_finite = ops.isfinite(values)
    magnitude = ops.where(is_finite, ops.abs(values), 0.0)
    nonfinite = _count(ops.logical_not(is_finite))
    return ops.stack(
        [
            ops.sqrt(ops.sum(ops.square(magnitude))),
            1.0 - _count(ops.not_equal(values, 0.0)) / size,
            nonfinite,
            ops.ones_like(nonfinite),
            ops.max(magnitude),
        ]
    )


def _count(mask: Any) -> Any:
    # In whole numbers: float32 stops counting at 16 million.
    return ops.cast(ops.sum(ops.cast(mask, "int32")), "float32")


def _variable_record(path: str, row: Sequence[float]) -> VariableGradient:
    return VariableGradient(
        path=path,
        steps=round(row[STEPS]),
        norm=row[NORM] / row[STEPS],
        max_abs=row[LARGEST],
        zero_fraction=row[ZEROS] / row[STEPS],
        nonfinite=round(row[NONFINITE]),
    )
