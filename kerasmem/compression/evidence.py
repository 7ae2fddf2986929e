"""Collects accumulated gradients and layer inputs on calibration samples."""

from collections.abc import Callable, Sequence
from typing import Any

import keras
import numpy as np

from kerasmem.backends import current
from kerasmem.compression.judge import lacks_labels
from kerasmem.errors import ConfigError, ModelError
from kerasmem.files.data import (
    fit_arguments,
    sample_count,
    shared,
)
from kerasmem.graph.clone import clone, compile_settings
from kerasmem.graph.outputs import without_preprocessor
from kerasmem.types import Dataset, Model, Optimizer

_BATCH_SIZE, _BATCHES = 32, 100


_ADDED: dict[str, Callable[[Any, Any], Any]] = {
    "taylor": lambda weight, gradient: keras.ops.square(weight * gradient),
    "movement": lambda weight, gradient: -weight * gradient,
    "gradient": lambda _, gradient: gradient,
}
"""Term that each step adds per entry of a weight, by kind."""


class GradientEvidence:
    """Accumulates a float32 gradient statistic per weight entry over training steps.

    `kind` is `"taylor"`, `"movement"` or `"gradient"`.
    """

    def __init__(
        self, optimizer: Optimizer, variables: Sequence[Any], kind: str
    ) -> None:
        self._add = _ADDED[kind]
        self._sums = {
            id(variable): current().step_state(
                optimizer,
                np.zeros(variable.shape, "float32"),
                f"kerasmem_{kind}_{i}",
                like=variable,
            )
            for i, variable in enumerate(variables)
        }
        self._undo: list[Callable[[], None]] = [
            current().observe_gradients(optimizer, self._observe),
            *(state.release for state in self._sums.values()),
        ]

    def read(self) -> list[np.ndarray]:
        """Returns the sums so far."""
        return [state.read() for state in self._sums.values()]

    def clear(self) -> None:
        """Resets the sums to zero."""
        for state in self._sums.values():
            state.write(np.zeros(state.variable.shape, "float32"))

    def release(self) -> None:
        """Stops the accumulation. A second call is a no-op."""
        while self._undo:
            self._undo.pop()()

    def _observe(self, gradients: Sequence[Any], variables: Sequence[Any]) -> None:
        backend, ops = current(), keras.ops
        with backend.inference():
            gradients = backend.complete_gradients(gradients, variables)
            for gradient, variable in zip(gradients, variables, strict=True):
                state = self._sums.get(id(variable))
                if state is None:
                    continue
                dense = ops.cast(backend.dense(gradient), "float32")
                weight = ops.cast(ops.convert_to_tensor(variable), "float32")
                total = ops.convert_to_tensor(state.variable)
                state.variable.assign(total + self._add(weight, dense))


def sums_over_samples(
    model: Model, variables: Sequence[Any], kind: str, data: Dataset
) -> list[np.ndarray]:
    """Returns gradient statistics summed over the first 100 batches of `data`.

    The model is not changed. The sums of frozen weights are zero.

    Raises:
        ConfigError: If the data or its labels are missing.
        ModelError: If the model has no loss.
    """
    if data is None or lacks_labels(data):
        words = "None" if data is None else "samples without labels"
        raise ConfigError(
            f"The criterion {kind!r} needs gradients. Received: data={words}. Next: "
            "give samples with labels as data=(x, y)."
        )
    if not model.compiled:
        raise ModelError(
            f"The model {model.name!r} has no loss, so it has no gradients. Next: "
            "compile it, or give loss=."
        )
    # A learning rate of 0 keeps the weights; the copy's statistics may change.
    copy = clone(model)
    copy.compile(
        **{**(compile_settings(model) or {}), "optimizer": keras.optimizers.SGD(0.0)}
    )
    # Matched by position, because a copy can have other weight paths.
    places = {id(variable): i for i, variable in enumerate(model.variables)}
    variable_copies = [copy.variables[places[id(v)]] for v in variables]
    copy.optimizer.build(copy.trainable_variables)
    evidence = GradientEvidence(copy.optimizer, variable_copies, kind)
    try:
        arguments = fit_arguments(data, shared(_BATCH_SIZE)) | {"shuffle": False}
        if (sample_count(data) or 0) > _BATCHES * _BATCH_SIZE:
            arguments["steps_per_epoch"] = _BATCHES
        with without_preprocessor([copy]):
            copy.fit(**arguments, verbose=0)
        return evidence.read()
    finally:
        evidence.release()
        current().release_graphs()
