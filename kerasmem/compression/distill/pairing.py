"""Which layers of the teacher teach which layers of the student."""

from typing import Any

import keras

from kerasmem.compression.distill.features import Tap
from kerasmem.compression.distill.losses import FeatureLoss
from kerasmem.compression.distill.probing import Probe
from kerasmem.compression.distill.tapping import find_layers, inner_layers
from kerasmem.errors import ModelError
from kerasmem.graph.layers import has_graph

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
) -> list[tuple[Tap, Tap]]:
    """Return what is compared with what: a tap of the teacher, one of the student.

    Args:
        loss: what its `layers` say.
        models: teacher and student.
        probes: what their layers gave for a sample.

    Raises:
        ModelError: if a name means no layer, or no layers fit each other.
    """
    if isinstance(loss.layers, str):
        hidden = [_hidden(*pair) for pair in zip(models, probes, strict=True)]
        pairs = _last(*hidden) if loss.layers == "last" else _by_shape(loss, *hidden)
        if not pairs:
            # Of layers that give vectors.
            why = loss.mismatch((1,), (1,))
            raise ModelError(
                f"No layers of the teacher {models[0].name!r} and the student "
                f"{models[1].name!r} fit each other by shape and depth"
                f"{f': {why}' if why else ''}. Next: name "
                f"them, layers=[('of_teacher', 'of_student')]. "
                f"Received: layers={loss.layers!r}."
            )
        return [(Tap(teacher), Tap(student)) for teacher, student in pairs]
    return [pair for names in loss.layers for pair in _by_name(names, models)]


def _by_name(names: tuple[str, str], models: tuple[Any, Any]) -> list[tuple[Tap, Tap]]:
    teacher, student = (
        find_layers(model, name, role)
        for model, name, role in zip(models, names, ("teacher", "student"), strict=True)
    )
    if len(teacher) != len(student):
        raise ModelError(
            "Layers are paired in order, so both names must mean as many. Received: "
            f"{names[0]!r} means {len(teacher)} layers of the teacher, {names[1]!r} "
            f"means {len(student)} of the student."
        )
    return [(Tap(*a), Tap(*b)) for a, b in zip(teacher, student, strict=True)]


def _hidden(model: Any, found: Probe) -> list[list[tuple[str, tuple[int, ...]]]]:
    """Return the features of a model by block, without those of its outputs.

    A block begins with a layer that has a kernel and lasts until the next one does.
    """
    layers = inner_layers(model)
    wanted = {id(layer) for layer in _units(model)}
    blocks: list[list[tuple[str, tuple[int, ...]]]] = []
    for path, (shape, *_) in found.tensors.items():
        if id(layers[path]) not in wanted:
            continue
        if any(len(w.shape) > 1 for w in layers[path].weights):
            blocks.append([])
        if blocks and shape:
            blocks[-1].append((path, shape))
    inner = [
        [(path, shape) for path, shape in block if not isinstance(layers[path], _NOISY)]
        for block in blocks
        if not any(path in found.final for path, _ in block)
    ]
    return [block for block in inner if block]


def _units(model: Any) -> list[Any]:
    """Return the layers of a model, those of nested models in their places."""
    layers = model.layers if has_graph(model) or isinstance(model, keras.Model) else []
    nested = (_units(x) if isinstance(x, keras.Model) else [x] for x in layers)
    return [layer for group in nested for layer in group]


def _last(teacher: list[Any], student: list[Any]) -> list[tuple[str, str]]:
    if not teacher or not student:
        return []
    return [(teacher[-1][-1][0], student[-1][-1][0])]


def _by_shape(
    loss: FeatureLoss, teacher: list[Any], student: list[Any]
) -> list[tuple[str, str]]:
    """Pair what has the same shape but for the channels, if the loss can compare it.

    Of images of one size the last counts; of vectors and sequences every block, spread
    over the other model's by depth.
    """
    taught, learned = _by_places(teacher), _by_places(student)
    pairs = []
    for places, ours in learned.items():
        shape = (*places, 1)
        theirs = [] if loss.mismatch(shape, shape) else taught.get(places, [])
        counted = slice(-1, None) if len(places) >= 2 else slice(None)
        pairs += _spread(theirs[counted], ours[counted])
    return pairs


def _by_places(blocks: list[Any]) -> dict[tuple[int, ...], list[str]]:
    found: dict[tuple[int, ...], list[str]] = {}
    for block in blocks:
        last = {shape[:-1]: path for path, shape in block}
        for places, path in last.items():
            found.setdefault(places, []).append(path)
    return found


def _spread(teacher: list[str], student: list[str]) -> list[tuple[str, str]]:
    """Pair two lists from the end, evenly; none is used twice."""
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
