"""A teacher that only answers: it is never trained, tracked or changed."""

import contextlib
from typing import Any

import keras
from keras import ops

from kerasmem import backends
from kerasmem.compression.distill.features import Reader, Tap
from kerasmem.errors import ModelError


class FrozenTeacher:
    """The teacher behind a wall.

    Keras collects the weights of everything that a model holds; of this it does not,
    so the teacher keeps its `trainable` flag and its weights stay out of every
    optimizer, gradient and file.

    Args:
        model: a built `keras.Model`.
        taps: features to read while it answers.

    Raises:
        ModelError: if the model has no weights yet.
    """

    def __init__(self, model: Any, taps: list[Tap]) -> None:
        if not model.built:
            raise ModelError(
                f"The teacher {model.name!r} has no weights yet. Next: call it on a "
                "batch of data first."
            )
        self.model = model
        self.taps = taps
        self.read = Reader(model, taps)

    def step_state(self) -> list[Any]:
        """Return variables for whoever calls `answer` inside a compiled step.

        A compiled step of JAX sees only the state that rides along, and gives the
        memory of that state away, for good if the step is interrupted. So copies ride.
        The other backends read the teacher's own variables.
        """
        if keras.backend.backend() != "jax":
            return []
        return [
            keras.Variable(ops.copy(v.value), dtype=v.dtype, trainable=False)
            for v in self.model.variables
        ]

    def answer(self, x: Any, state: list[Any]) -> tuple[Any, dict[Tap, Any]]:
        """Return the teacher's outputs for a batch and features, in inference mode.

        Args:
            x: inputs as `fit` gives them to a model.
            state: what `step_state` returned.
        """
        riding = [
            (v, s.value) for v, s in zip(self.model.variables, state, strict=False)
        ]
        scope = keras.StatelessScope(riding) if riding else contextlib.nullcontext()
        with backends.current().inference(), scope:
            outputs, features = self.read(x, training=False)
        outputs = keras.tree.map_structure(ops.stop_gradient, outputs)
        return outputs, {t: ops.stop_gradient(f) for t, f in features.items()}
