"""What samples tell about weights: their gradients, added up, and what layers take."""

from collections.abc import Callable, Sequence
from typing import Any

import keras
import numpy as np

from kerasmem.backends import current
from kerasmem.backends.patching import See
from kerasmem.compression.judge import lacks_labels
from kerasmem.errors import ConfigError, ModelError
from kerasmem.files.data import (
    fit_arguments,
    input_batches,
    sample_count,
    sample_inputs,
    shared,
)
from kerasmem.graph.clone import clone, compile_settings
from kerasmem.graph.observe import observe
from kerasmem.graph.outputs import without_preprocessor
from kerasmem.types import Dataset, Model, Optimizer

_BATCH_SIZE, _BATCHES = 32, 100


_ADDED: dict[str, Callable[[Any, Any], Any]] = {
    "taylor": lambda weight, gradient: keras.ops.square(weight * gradient),
    "movement": lambda weight, gradient: -weight * gradient,
    "gradient": lambda _, gradient: gradient,
}
"""What a step adds for each entry of a weight, by kind."""


class GradientEvidence:
    """Sums over the updates of a training, one float32 per entry.

    Args:
        optimizer: of the model that trains.
        variables: the variables of interest.
        kind: what is added: `"taylor"`, `"movement"` or `"gradient"` itself.
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
        """Return the sums so far."""
        return [state.read() for state in self._sums.values()]

    def clear(self) -> None:
        """Start anew."""
        for state in self._sums.values():
            state.write(np.zeros(state.variable.shape, "float32"))

    def release(self) -> None:
        """Stop adding up; a second call is a no-op."""
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
    """Return sums over the batches of `data`, of gradients that change nothing.

    Args:
        model: a built model, compiled with a loss.
        variables: the weights to tell of; the sums of one that is frozen are zero.
        kind: what is added, see `GradientEvidence`.
        data: samples with labels, in any form that `kerasmem.files.data` lists; the
            first 100 batches count.

    Raises:
        ConfigError: if the data is missing, or has no labels.
        ModelError: if the model has no loss.
    """
    if data is None or lacks_labels(data):
        words = "None" if data is None else "samples without labels"
        raise ConfigError(
            f"The criterion {kind!r} looks at gradients: give samples with labels as "
            f"data=(x, y). Received: data={words}."
        )
    if not model.compiled:
        raise ModelError(
            f"The model {model.name!r} has no loss, so it has no gradients. Compile "
            "it, or give loss=."
        )
    # A copy, whose statistics may move, and whose weights do not: the rate is 0.
    copy = clone(model)
    copy.compile(
        **{**(compile_settings(model) or {}), "optimizer": keras.optimizers.SGD(0.0)}
    )
    # By their place: a copy may give its weights other paths.
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


def observe_samples(
    model: Model,
    layers: Sequence[Any],
    see: See,
    data: Dataset,
    *,
    samples: int,
    criterion: str,
) -> int:
    """Show what layers take of the first samples, as `predict` would; return how many.

    Args:
        model: a built model.
        layers: layers anywhere in it.
        see: is shown every call of them.
        data: samples in any form that `kerasmem.files.data` lists; of batches the first
            one is taken.
        samples: most samples to look at.
        criterion: what wants to know, for the text of the error.

    Raises:
        ConfigError: if there are no samples.
    """
    if data is None:
        raise ConfigError(
            f"The criterion {criterion!r} looks at what goes into layers: give samples "
            "as data=x (--data on the command line). Received: data=None."
        )
    batches = input_batches((sample_inputs(data, samples),), samples, _BATCH_SIZE)
    return observe(model, batches, layers, inputs=see)
