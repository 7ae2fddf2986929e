"""The gradient of one batch, on any backend and under any compiler."""

from collections.abc import Sequence
from typing import Any

import keras
import numpy as np

from kerasmem.graph.clone import compile_settings
from kerasmem.graph.values import to_numpy
from kerasmem.memory.compress_activations.record import GradientChange


class _Recorder(keras.optimizers.Optimizer):
    """Leaves the weights as they are and keeps the gradient."""

    def __init__(self) -> None:
        super().__init__(learning_rate=1.0, name="recorder")
        self.gradients: list[Any] = []

    def build(self, variables: Sequence[Any]) -> None:
        if self.built:
            return
        super().build(variables)
        self.gradients = [
            self.add_variable_from_reference(v, name="gradient") for v in variables
        ]

    def update_step(self, gradient: Any, variable: Any, learning_rate: Any) -> None:  # noqa: ARG002
        # Added to zeros: of a sparse gradient Keras knows how to add it.
        slot = self.gradients[self._get_variable_index(variable)]
        self.assign_add(slot, gradient)


def gradients(model: Any, batch: Sequence[Any]) -> dict[str, np.ndarray]:
    """Return the gradient of every trainable variable, by path.

    Args:
        model: a compiled model; it is compiled anew and takes a step without learning.
        batch: `(x, y)` or `(x, y, sample_weight)`.
    """
    recorder = _Recorder()
    settings = compile_settings(model) or {}
    model.compile(
        optimizer=recorder,
        loss=settings["loss"],
        loss_weights=settings["loss_weights"],
        jit_compile=settings["jit_compile"],
        run_eagerly=settings["run_eagerly"],
        auto_scale_loss=False,
    )
    model.train_on_batch(*batch)
    pairs = zip(model.trainable_variables, recorder.gradients, strict=True)
    return {variable.path: to_numpy(slot) for variable, slot in pairs}


def changes(
    exact: dict[str, np.ndarray], moved: dict[str, np.ndarray]
) -> tuple[tuple[GradientChange, ...], float]:
    """Return by how much the gradient moved, by layer and as a whole."""
    layers: dict[str, list[str]] = {}
    for path in exact:
        layers.setdefault(path.rpartition("/")[0], []).append(path)
    each = tuple(
        GradientChange(layer, _relative(paths, exact, moved))
        for layer, paths in layers.items()
    )
    return each, _relative(list(exact), exact, moved)


def _relative(
    paths: Sequence[str], exact: dict[str, np.ndarray], moved: dict[str, np.ndarray]
) -> float:
    difference = sum(_square(moved[path] - exact[path]) for path in paths)
    norm = sum(_square(exact[path]) for path in paths)
    if not norm:
        return float("inf") if difference else 0.0
    return float(np.sqrt(difference / norm))


def _square(values: np.ndarray) -> float:
    return float(np.sum(values.astype(np.float64) ** 2))
