"""Pairs layers of the teacher with layers of the student."""

from dataclasses import dataclass
from typing import Any

import keras

from kerasmem import backends
from kerasmem.compression.distill.features import (
    FeatureRef,
    channels_last,
    find_layers,
    inner_layers,
    layer_outputs,
)
from kerasmem.compression.distill.losses.base import FeatureLoss
from kerasmem.compression.measure import batch_of
from kerasmem.errors import ModelError
from kerasmem.graph.layers import has_graph
from kerasmem.types import Model, Tensors


@dataclass(frozen=True)
class Probe:
    """Layer output shapes of a model, and the paths of its output layers.

    Shapes are channels-last without the batch axis, by layer path in call order.
    """

    model: str
    tensors: dict[str, list[tuple[int, ...]]]
    final: frozenset[str]

    def shape(self, ref: FeatureRef) -> tuple[int, ...]:
        """Returns the shape of a feature. Raises `ModelError` if it does not exist."""
        shapes = self.tensors.get(ref.path)
        if shapes is None:
            raise ModelError(
                f"The layer {ref.path!r} of {self.model!r} does not run when the model "
                "is called. Next: pair another layer."
            )
        if ref.index >= len(shapes):
            raise ModelError(
                f"The layer {ref.path!r} of {self.model!r} returns {len(shapes)} "
                f"tensors. Received: '{ref.path}:{ref.index}'."
            )
        return shapes[ref.index]


def probe_models(teacher: Model, student: Model, sample: Any) -> tuple[Probe, Probe]:
    """Returns the layer output shapes of both models, on samples or zeros."""
    return (
        probe(teacher, sample_for(teacher, sample, "teacher")),
        probe(student, sample_for(student, sample, "student")),
    )


def probe(model: Model, inputs: Tensors) -> Probe:
    """Returns the layer output shapes of a model in inference mode."""
    layers = inner_layers(model)
    with backends.current().inference(), layer_outputs(layers) as by_path:
        outputs = model(inputs, training=False)
    ends = {id(x) for x in keras.tree.flatten(outputs)}
    return Probe(
        model=model.name,
        tensors={
            path: [tuple(channels_last(x, layers[path]).shape)[1:] for x in tensors]
            for path, tensors in by_path.items()
            if tensors
        },
        final=frozenset(
            path
            for path, tensors in by_path.items()
            if any(id(x) in ends for x in tensors)
        ),
    )


def sample_for(model: Model, sample: Any, role: str) -> Any:
    """Returns the given samples, or zeros of the model's input shape.

    Raises:
        ModelError: If there are no samples and the input shape is unknown.
    """
    samples = batch_of(model, None, 1) if sample is None else sample
    if samples is None:
        raise ModelError(
            f"The input shape of the {role} {model.name!r} is unknown, but feature "
            "losses need it. Next: give sample=, a few inputs."
        )
    return samples


_NOISY = (
    keras.layers.Dropout,
    keras.layers.SpatialDropout1D,
    keras.layers.SpatialDropout2D,
    keras.layers.GaussianNoise,
    keras.layers.GaussianDropout,
    keras.layers.Flatten,
    keras.layers.Reshape,
)


def pair_layers(
    loss: FeatureLoss, models: tuple[Any, Any], probes: tuple[Probe, Probe]
) -> list[tuple[FeatureRef, FeatureRef]]:
    """Returns pairs of a teacher feature and a student feature.

    Raises:
        ModelError: If a name matches no layer, or no layers fit each other.
    """
    if isinstance(loss.layers, str):
        hidden = [_hidden(*pair) for pair in zip(models, probes, strict=True)]
        if loss.layers == "last":
            pairs = (
                [tuple(blocks[-1][-1][0] for blocks in hidden)] if all(hidden) else []
            )
        else:
            pairs = _by_shape(loss, *hidden)
        if not pairs:
            # Shapes of vector features, for the reason in the message.
            why = loss.mismatch((1,), (1,))
            raise ModelError(
                f"No layers of the teacher {models[0].name!r} and the student "
                f"{models[1].name!r} fit each other by shape and depth"
                f"{f': {why}' if why else ''}. Next: name "
                f"them, layers=[('of_teacher', 'of_student')]. "
                f"Received: layers={loss.layers!r}."
            )
        return [
            (FeatureRef(teacher), FeatureRef(student)) for teacher, student in pairs
        ]
    return [pair for names in loss.layers for pair in _by_name(names, models)]


def _by_name(
    names: tuple[str, str], models: tuple[Any, Any]
) -> list[tuple[FeatureRef, FeatureRef]]:
    teacher, student = (
        find_layers(model, name, role)
        for model, name, role in zip(models, names, ("teacher", "student"), strict=True)
    )
    if len(teacher) != len(student):
        raise ModelError(
            "Layers are paired in order, so both names must match equally many layers. "
            f"Received: {names[0]!r} with {len(teacher)} layers of the teacher, "
            f"{names[1]!r} with {len(student)} of the student."
        )
    return [
        (FeatureRef(*a), FeatureRef(*b)) for a, b in zip(teacher, student, strict=True)
    ]


def _hidden(model: Model, probe: Probe) -> list[list[tuple[str, tuple[int, ...]]]]:
    """Returns the hidden features of a model by block.

    A block starts at each layer with a kernel. The output block is excluded.
    """
    layers = inner_layers(model)
    unit_ids = {id(layer) for layer in _units(model)}
    blocks: list[list[tuple[str, tuple[int, ...]]]] = []
    for path, (shape, *_) in probe.tensors.items():
        if id(layers[path]) not in unit_ids:
            continue
        if any(len(w.shape) > 1 for w in layers[path].weights):
            blocks.append([])
        if blocks and shape:
            blocks[-1].append((path, shape))
    inner = [
        [(path, shape) for path, shape in block if not isinstance(layers[path], _NOISY)]
        for block in blocks
        if not any(path in probe.final for path, _ in block)
    ]
    return [block for block in inner if block]


def _units(model: Model) -> list[Any]:
    layers = model.layers if has_graph(model) or isinstance(model, keras.Model) else []
    groups = (_units(x) if isinstance(x, keras.Model) else [x] for x in layers)
    return [layer for group in groups for layer in group]


def _by_shape(
    loss: FeatureLoss, teacher: list[Any], student: list[Any]
) -> list[tuple[str, str]]:
    """Pairs features of equal spatial shape, if the loss can compare them.

    For images, only the last features of each size are paired. For vectors and
    sequences, all blocks are paired, evenly spread over the depth of the other model.
    """
    of_teacher, of_student = _by_places(teacher), _by_places(student)
    pairs = []
    for places, ours in of_student.items():
        shape = (*places, 1)
        theirs = [] if loss.mismatch(shape, shape) else of_teacher.get(places, [])
        places_to_pair = slice(-1, None) if len(places) >= 2 else slice(None)
        pairs += _spread(theirs[places_to_pair], ours[places_to_pair])
    return pairs


def _by_places(blocks: list[Any]) -> dict[tuple[int, ...], list[str]]:
    paths_by_places: dict[tuple[int, ...], list[str]] = {}
    for block in blocks:
        last = {shape[:-1]: path for path, shape in block}
        for places, path in last.items():
            paths_by_places.setdefault(places, []).append(path)
    return paths_by_places


def _spread(teacher: list[str], student: list[str]) -> list[tuple[str, str]]:
    count = min(len(teacher), len(student))
    return [
        (
            teacher[_place(i, count, len(teacher))],
            student[_place(i, count, len(student))],
        )
        for i in range(count)
    ]


def _place(i: int, count: int, length: int) -> int:
    return (i + 1) * length // count - 1
