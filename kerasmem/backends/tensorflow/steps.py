"""TensorFlow: a step is a graph that changes the variables."""

import gc
from abc import abstractmethod
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from functools import partial
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from kerasmem.backends import splitting
from kerasmem.backends.in_place import (
    InPlaceSteps,
    InPlaceTraining,
)
from kerasmem.backends.options import StepOptions
from kerasmem.backends.steps import (
    Count,
    GradientSum,
    Part,
    Step,
    changed_by_evaluation,
    changed_by_training,
    keras_function_of,
)


class TensorFlowSteps(InPlaceSteps):
    """Steps of a model, on each replica of its strategy.

    Args:
        model: the compiled model.
    """

    def __init__(self, model: Any) -> None:
        super().__init__(model)
        self._strategy = model.distribute_strategy
        # TensorFlow 2.21 frees the variables that a failed XLA step was given, and
        # ends the process when they are written. They still can be read, for a while.
        self.survives_failure = model.jit_compile is not True

    @property
    @abstractmethod
    def step(self) -> Step:
        """The model's own step."""

    def run(self, function: Step, state: Any, batch: Any) -> tuple[Any, Any]:
        """Return logs after `function` had one batch."""
        return function(iter([batch])), state

    def wait(self, logs: Any, state: Any) -> None:
        """Wait until the device has done what it was told."""
        for value in keras.tree.flatten(logs):
            np.asarray(value)

    def split(self, batch: Any, parts: int) -> list[Any]:
        """Return a batch in so many parts, on each replica."""
        pieces = [
            splitting.split(local, parts, _cut) for local in self._on_replicas(batch)
        ]
        return [self._together(part) for part in zip(*pieces, strict=True)]

    def size(self, batch: Any) -> int:
        """Return the number of samples, 1 if the batch cannot be split."""
        return min(map(splitting.splittable_length, self._on_replicas(batch)))

    def weigh(
        self, parts: Sequence[Any], valid: Sequence[Any] | None
    ) -> list[tuple[Any, Any]]:
        """Return each part with what it counts, see `splitting.weights`."""
        local = [self._on_replicas(part) for part in parts]
        counted = [self._on_replicas(each) for each in valid] if valid else None
        by_replica = [
            splitting.weights(
                [splitting.length_of(part[replica]) for part in local],
                [np.asarray(each[replica]) for each in counted] if counted else None,
            )
            for replica in range(self._replicas)
        ]
        return [
            (part, self._together([tuple(map(tf.constant, each)) for each in own]))
            for part, own in zip(parts, zip(*by_replica, strict=True), strict=True)
        ]

    def shape(self, batch: Any) -> tuple[int, ...]:
        """Return the lengths of all axes of all arrays in a batch."""
        local = map(splitting.axes_of, self._on_replicas(batch))
        return tuple(length for axes in local for length in axes)

    def counting(self, count: Count) -> Callable[[Any, Any], Any]:
        """Return a function of state and batch that calls `count`, compiled."""
        counted = partial(count, [])
        if not self._model.run_eagerly:
            # As Keras runs a step: nothing is read as source code.
            counted = tf.function(counted, reduce_retracing=True, autograph=False)
        return lambda _, batch: self._strategy.run(counted, args=(batch,))

    def free(self) -> None:
        """Drop what only cycles of references hold."""
        gc.collect()

    @property
    def _replicas(self) -> int:
        return self._strategy.num_replicas_in_sync

    def _on_replicas(self, values: Any) -> list[Any]:
        # As Keras itself does with what a dataset gives for None.
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
            return by_replica[0]
        return self._strategy.experimental_distribute_values_from_function(
            lambda context: by_replica[context.replica_id_in_sync_group]
        )

    def _to_host(self, variable: Any) -> np.ndarray:
        return np.array(variable.numpy())

    def _put_back(self, variable: Any, value: np.ndarray) -> None:
        variable.assign(value)


class TensorFlowEvaluation(TensorFlowSteps):
    """A model that TensorFlow evaluates."""

    @property
    def step(self) -> Step:
        """The model's own step."""
        return self._model.test_step

    def function_of(self, step: Step) -> Step:
        """Return what Keras makes of a step: compiled and distributed."""
        return keras_function_of(self._model, "test", step)

    def _changed(self) -> list[Any]:
        return _by_replicas(changed_by_evaluation(self._model))


class TensorFlowTraining(TensorFlowSteps, InPlaceTraining):
    """A model that TensorFlow trains."""

    @property
    def step(self) -> Step:
        """The model's own step."""
        return self._model.train_step

    def scope(self) -> AbstractContextManager[Any]:
        """Return the scope of the model's strategy."""
        return self._strategy.scope()

    def function_of(self, step: Step) -> Step:
        """Return what Keras makes of a step: compiled and distributed."""
        return keras_function_of(self._model, "train", step)

    def _add(
        self, totals: Sequence[GradientSum], gradients: Sequence[Any], part: Part
    ) -> Sequence[Any]:
        scaled = self._scaled(gradients, part.share)
        for total, more in zip(totals, scaled, strict=True):
            total.is_reached |= more is not None
        if not part.is_last:
            for total, more in zip(totals, scaled, strict=True):
                if more is not None:
                    total.variable.assign_add(more)
        return [
            # The optimizer adds up over the replicas once more.
            (total.value if more is None else total.value + more) / self._replicas
            if total.is_reached and part.is_last
            else None
            for total, more in zip(totals, scaled, strict=True)
        ]

    def _as_dtype_of(self, variable: Any, total: Any) -> Any:
        return tf.cast(total, variable.dtype)

    def _clear(self, total: GradientSum) -> None:
        total.variable.assign(tf.zeros_like(total.value))

    def _scaled(self, gradients: Sequence[Any], share: Any) -> list[Any]:
        """Return dense gradients, scaled, in float32, summed over the replicas."""
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
        return _by_replicas(changed_by_training(self._model))


def _by_replica(value: Any) -> Sequence[Any]:
    return (
        value.values if isinstance(value, tf.distribute.DistributedValues) else [value]
    )


def _cut(array: Any, begin: int, end: int) -> Any:
    if isinstance(array, tf.SparseTensor):
        start = [begin] + [0] * (array.shape.rank - 1)
        return tf.sparse.slice(array, start, [end - begin, *array.shape[1:]])
    return array[begin:end]


def _by_replicas(variables: Sequence[Any]) -> list[Any]:
    return [part for variable in variables for part in _by_replica(variable.value)]


class TensorFlowOptions(StepOptions):
    """What can be chosen of a step in TensorFlow."""

    graph_passes = {  # noqa: RUF012 - never changed
        "layout optimizer": "layout_optimizer",
        "constant folding": "constant_folding",
    }

    def leave_out(self, graph_pass: str) -> None:
        """Leave a pass out of what this process makes of its graphs."""
        name = self.graph_passes[graph_pass]
        tf.config.optimizer.set_experimental_options({name: False})

    def data_parallel(self) -> AbstractContextManager[Any]:
        """Return the scope in which a model is made that trains on every device."""
        kind = "GPU" if tf.config.list_logical_devices("GPU") else "CPU"
        names = [device.name for device in tf.config.list_logical_devices(kind)]
        return tf.distribute.MirroredStrategy(names).scope()

    def repeated(self, batch: Any) -> Any:
        """Return a dataset of the same batch.

        Keras would copy what a generator gives ahead of its use, and the allocator
        would count the copies.
        """
        return tf.data.Dataset.from_tensors(batch).repeat()
