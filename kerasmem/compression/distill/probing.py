"""What the layers of a model give, found out by one pass before anything is trained."""

from dataclasses import dataclass
from typing import Any

import keras
import numpy as np

from kerasmem import backends
from kerasmem.compression.distill.features import Tap, channels_last
from kerasmem.compression.distill.tapping import inner_layers, tapped
from kerasmem.errors import ModelError


@dataclass(frozen=True)
class Probe:
    """What the layers of a model gave for a sample.

    Args:
        model: name of the model, for the text of errors.
        tensors: shapes of what every layer that ran returned, without the batch axis,
            channels last, by path in the order of the calls.
        final: paths of the layers that gave an output of the model.
    """

    model: str
    tensors: dict[str, list[tuple[int, ...]]]
    final: frozenset[str]

    def shape(self, tap: Tap) -> tuple[int, ...]:
        """Return the shape of a feature.

        Raises:
            ModelError: if the layer did not run, or has no such tensor.
        """
        shapes = self.tensors.get(tap.path)
        if shapes is None:
            raise ModelError(
                f"The layer {tap.path!r} of {self.model!r} does not run when the model "
                "is called. Next: pair another one."
            )
        if tap.index >= len(shapes):
            raise ModelError(
                f"The layer {tap.path!r} of {self.model!r} returns {len(shapes)} "
                f"tensors. Received: '{tap.path}:{tap.index}'."
            )
        return shapes[tap.index]


def probe_models(teacher: Any, student: Any, sample: Any) -> tuple[Probe, Probe]:
    """Return what the layers of two models give.

    Args:
        teacher: a built model.
        student: likewise.
        sample: inputs for both, or None for zeros.

    Raises:
        ModelError: if no sample is given and a model does not tell its inputs' shape.
    """
    return (
        probe(teacher, sample_for(teacher, sample, "teacher")),
        probe(student, sample_for(student, sample, "student")),
    )


def probe(model: Any, inputs: Any) -> Probe:
    """Return what the layers of a model give for some samples, in inference mode."""
    layers = inner_layers(model)
    with backends.current().inference(), tapped(layers) as given:
        outputs = model(inputs, training=False)
    ends = {id(x) for x in keras.tree.flatten(outputs)}
    return Probe(
        model=model.name,
        tensors={
            path: [tuple(channels_last(x, layers[path]).shape)[1:] for x in tensors]
            for path, tensors in given.items()
            if tensors
        },
        final=frozenset(
            path
            for path, tensors in given.items()
            if any(id(x) in ends for x in tensors)
        ),
    )


def sample_for(model: Any, sample: Any, role: str) -> Any:
    """Return samples to probe a model with: those given, or zeros of its inputs' shape.

    Raises:
        ModelError: if none are given and the model does not tell of what shape.
    """
    if sample is not None:
        return sample
    inputs = getattr(model, "inputs", None)
    shapes = [tuple(x.shape)[1:] for x in inputs or ()]
    if not shapes or any(None in shape for shape in shapes):
        raise ModelError(
            f"The {role} {model.name!r} does not tell the shape of its inputs, which "
            "the features of its layers depend on. Next: hand in sample=, some inputs."
        )
    structure = getattr(model, "_inputs_struct", None)
    zeros = [np.zeros((1, *x.shape[1:]), x.dtype) for x in inputs or ()]
    single = isinstance(model, keras.Sequential) or structure is None
    return zeros[0] if single else keras.tree.pack_sequence_as(structure, zeros)
