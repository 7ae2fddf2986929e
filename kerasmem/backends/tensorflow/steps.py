"""TensorFlow training steps as graphs that update the variables."""

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from functools import partial
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from kerasmem.backends import splitting
from kerasmem.backends.in_place import InPlaceSteps
from kerasmem.backends.steps import (
    BatchPart,
    Count,
    GradientSum,
    Step,
    StepBackend,
    count_traces,
)
from kerasmem.types import Logs, Model, Tensor, Tensors, Variable


def _rows(array: Tensor, begin: int, end: int) -> Any:
    if isinstance(array, tf.SparseTensor):
        start = [begin] + [0] * (array.shape.rank - 1)
        return tf.sparse.slice(array, start, [end - begin, *array.shape[1:]])
    return splitting.rows(array, begin, end)


class TensorFlowSteps(InPlaceSteps):
    """Steps of a model on each replica of its strategy."""

    take_rows = staticmethod(_rows)

    def __init__(self, model: Model, kind: str) -> None:
        super().__init__(model, kind)
        self._strategy = model.distribute_strategy
        # TensorFlow 2.21 frees the variables of a failed XLA step and aborts the
        # process when they are written. Reads still work for a while.
        self.survives_failure = model.jit_compile is not True

    def run(self, function: Step, state: Any, batch: Tensors) -> tuple[Any, Any]:
        """Run `function` on one batch and return logs and state."""
        return function(iter([batch])), state

    def wait(self, logs: Logs, state: Any) -> None:
        """Wait for the device."""
        for value in keras.tree.flatten(logs):
            np.asarray(value)

    def counting(self, count: Count) -> Callable[[Any, Any], Any]:
        """Return a compiled function of state and batch that calls `count`."""
        function = partial(count, [])
        if not self._model.run_eagerly:
            # No autograph, as in Keras's steps.
            function = tf.function(function, reduce_retracing=True, autograph=False)
        return lambda _, batch: self._strategy.run(function, args=(batch,))

    @property
    def _replicas(self) -> int:
        return self._strategy.num_replicas_in_sync

    def on_replicas(self, values: Any) -> list[Any]:
        """Return the local part of a batch or result on each replica."""
        # As in Keras, for None entries of a dataset.
        values = keras.tree.map_structure(
            lambda x: None if isinstance(x, tf.experimental.Optional) else x, values
        )
        if self._replicas == 1:
            return [values]
        return [
            keras.tree.map_structure(lambda leaf, i=i: _by_replica(leaf)[i], values)
            for i in range(self._replicas)
        ]

    def _together(self, by_replica: Sequence[Any]) -> Any:
        if self._replicas == 1:
            return super()._together(by_replica)
        return self._strategy.experimental_distribute_values_from_function(
            lambda context: by_replica[context.replica_id_in_sync_group]
        )

    def _to_host(self, variable: Variable) -> np.ndarray:
        return np.asarray(variable.numpy())  # `numpy` copies

    def _put_back(self, variable: Variable, value: np.ndarray) -> None:
        variable.assign(value)

    def scope(self) -> AbstractContextManager[Any]:
        """Return the context of the model's strategy."""
        return self._strategy.scope()

    def function_of(self, step: Step) -> Step:
        """Compile and distribute a step as Keras does."""
        # Private: the public functions accept only the step of the model.
        return self._model._make_function(step)

    def _add(
        self, totals: Sequence[GradientSum], gradients: Sequence[Any], part: BatchPart
    ) -> Sequence[Any]:
        scaled_gradients = self._scaled(gradients, part.share)
        for total, more in zip(totals, scaled_gradients, strict=True):
            total.is_reached |= more is not None
        if not part.is_last:
            for total, more in zip(totals, scaled_gradients, strict=True):
                if more is not None:
                    total.variable.assign_add(more)
        return [
            # The optimizer sums over the replicas again.
            (total.value if more is None else total.value + more) / self._replicas
            if total.is_reached and part.is_last
            else None
            for total, more in zip(totals, scaled_gradients, strict=True)
        ]

    def _clear(self, total: GradientSum) -> None:
        total.variable.assign(tf.zeros_like(total.value))

    def _scaled(self, gradients: Sequence[Any], share: Any) -> list[Any]:
        present = [
            share * tf.cast(tf.convert_to_tensor(gradient), tf.float32)
            for gradient in gradients
            if gradient is not None
        ]
        if self._replicas > 1:
            replica = tf.distribute.get_replica_context()
            present = replica.all_reduce(tf.distribute.ReduceOp.SUM, present)
        rest = iter(present)
        return [None if gradient is None else next(rest) for gradient in gradients]

    def _changed(self) -> list[Any]:
        variables = super()._changed()
        return [part for variable in variables for part in _by_replica(variable.value)]

    def _to_tensors(self, share: Any, factors: Any) -> tuple[Any, Any]:
        return tf.constant(share), tf.constant(factors)


def _by_replica(value: Any) -> Sequence[Any]:
    return (
        value.values if isinstance(value, tf.distribute.DistributedValues) else [value]
    )


class TensorFlowStepping(StepBackend):
    """TensorFlow training steps, compiled as graphs that update the variables."""

    steps = TensorFlowSteps

    def weighs_batches_alike(self, model: Model) -> bool:
        """Return True for graph steps, which do not know the number of samples."""
        return not model.run_eagerly

    def traces(self, model: Model) -> int | None:
        """Return the trace count of the training step, None before the first step."""
        return count_traces(model, "experimental_get_tracing_count")
