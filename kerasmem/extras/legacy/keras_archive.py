"""Reads `.keras` files of Keras 2, which number the weights of each object.

The arrays of a tfmot wrapper have only numbers. Weights that the wrapper took from its
layer or shares come first, followed by the wrapper's own weights.
"""

import re
import zipfile
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import h5py
import numpy as np

from kerasmem.errors import ModelFileError
from kerasmem.extras.legacy.file import (
    Assignment,
    ConvertedLayer,
    LegacyFile,
    clustered,
    masked,
    wrapper_kind,
)
from kerasmem.files.archive import WEIGHTS, opened_weights
from kerasmem.files.datasets import check_declared, whole_array
from kerasmem.graph.layers import own_variables
from kerasmem.records.plain import read_json
from kerasmem.types import Layer

Config = dict[str, Any]


def read_archive(path: Path) -> LegacyFile:
    """Read a `.keras` file of Keras 2.

    Raises:
        ModelFileError: If the file has no weights.
    """
    with zipfile.ZipFile(path) as archive:
        config = read_json(archive.read("config.json"))
    with opened_weights(path) as file:
        if file is None:
            raise ModelFileError(f"{str(path)!r} has no weights: {WEIGHTS} is missing.")
        check_declared(path, file)
        root = _part(file)
    return LegacyFile(config, config.get("compile_config"), partial(_fill_model, root))


@dataclass
class ArchiveObject:
    """Arrays of an object and its child objects.

    Children have the names of attributes. Items of a list have the class name or a
    number.
    """

    arrays: dict[str, np.ndarray] = field(default_factory=dict)
    parts: dict[str, "ArchiveObject"] = field(default_factory=dict)

    def listed(self, classes: Sequence[str]) -> list["ArchiveObject"]:
        """Return the items of a list of objects with the given classes.

        A `.keras` file numbers the objects per class, a SavedModel numbers all objects.
        Objects without arrays are empty.

        Example:
            >>> root = ArchiveObject(parts={"dense_1": ArchiveObject({"0": 5})})
            >>> root.listed(["Dense", "Dense"])[1]
            ArchiveObject(arrays={'0': 5}, parts={})
        """
        counts: Counter[str] = Counter()
        parts = []
        for index, name in enumerate(map(snake_case, classes)):
            by_class = f"{name}_{counts[name]}" if counts[name] else name
            counts[name] += 1
            part = self.parts.get(by_class) or self.parts.get(str(index))
            parts.append(part or ArchiveObject())
        return parts


def snake_case(name: str) -> str:
    """Convert a class name to snake case, as in Keras 2.

    Example:
        >>> snake_case("Custom>SeparableConv2D")
        'separable_conv2d'
    """
    words = re.sub(r"\W+", "", name.rpartition(">")[2])
    words = re.sub(r"(.)([A-Z][a-z]+)", r"\1_\2", words)
    return re.sub(r"([a-z])([A-Z])", r"\1_\2", words).lower()


def _part(group: Any) -> ArchiveObject:
    arrays = group.get("vars", {})
    names = sorted(arrays, key=int)
    by_number = {name: whole_array(arrays[name], group.file) for name in names}
    inner = {
        name: _part(item)
        for name, item in group.items()
        if name != "vars" and isinstance(item, h5py.Group)
    }
    return ArchiveObject(by_number, inner)


def _fill_model(
    part: ArchiveObject, model: ConvertedLayer, assignment: Assignment
) -> None:
    classes = [layer.stored["class_name"] for layer in model.layers]
    parts = part.parts.get("layers", ArchiveObject()).listed(classes)
    for layer, inner in zip(model.layers, parts, strict=True):
        if layer.layers:
            _fill_model(inner, layer, assignment)
        elif layer.layer is not None:
            waiting = _taken_out(layer.stored, inner)
            _fill(layer.layer, _unwrapped(layer.stored, inner), waiting, assignment)


def _fill(
    layer: Layer, part: ArchiveObject, waiting: list[np.ndarray], assignment: Assignment
) -> None:
    """Assign the variables of a layer and its sublayers.

    `waiting` contains weights that tfmot took from the layer, in order. Assigned
    weights are removed from it.
    """
    variables, arrays = own_variables(layer), list(part.arrays.values())
    if len(arrays) > len(variables):
        raise ModelFileError(
            f"Too many weights for the layer {layer.name!r} in the file. "
            f"Expected: {len(variables)}. Received: {len(arrays)}."
        )
    for i, variable in enumerate(variables):
        is_short = len(arrays) < len(variables) - i
        if is_short and waiting and waiting[0].shape == tuple(variable.shape):
            assignment.put(variable, waiting.pop(0), layer.name)
        elif arrays:
            assignment.put(variable, arrays.pop(0), layer.name)
    for child in layer._flatten_layers(include_self=False, recursive=False):
        _fill(child, _part_of(child, layer, part), waiting, assignment)


def _part_of(child: Any, layer: Layer, part: ArchiveObject) -> ArchiveObject:
    for name, inner_part in part.parts.items():
        value = getattr(layer, name, None)
        if value is child:
            return inner_part
        if isinstance(value, Sequence) and any(v is child for v in value):
            parts = inner_part.listed([type(v).__name__ for v in value])
            return next(p for v, p in zip(value, parts, strict=True) if v is child)
    return ArchiveObject()


def _unwrapped(stored: Config, part: ArchiveObject) -> ArchiveObject:
    while (kind := wrapper_kind(stored)) is not None:
        stored, inner = (
            stored["config"]["layer"],
            part.parts.get("layer", ArchiveObject()),
        )
        part = _pruned(inner, part) if kind == "prune" else inner
    return part


def _taken_out(stored: Config, part: ArchiveObject) -> list[np.ndarray]:
    kind, own = wrapper_kind(stored), list(part.arrays.values())
    if kind == "cluster":
        # Alternating weights and centroids, then all indices.
        pairs, indices = own[: len(own) * 2 // 3], own[len(own) * 2 // 3 :]
        triples = zip(pairs[::2], pairs[1::2], indices, strict=True)
        return [clustered(*triple) for triple in triples]
    if kind == "quantize":
        return [array for array in own if array.ndim]
    if kind is None:
        return []
    return _taken_out(
        stored["config"]["layer"], part.parts.get("layer", ArchiveObject())
    )


def _pruned(part: ArchiveObject, wrapper: ArchiveObject) -> ArchiveObject:
    arrays = [array for array in wrapper.arrays.values() if array.ndim]
    return _masked(part, arrays[len(arrays) // 2 :])


def _masked(part: ArchiveObject, waiting: list[np.ndarray]) -> ArchiveObject:
    before = list(part.arrays.values())
    new_arrays = masked(before, waiting)
    used_masks = sum(a is not b for a, b in zip(before, new_arrays, strict=True))
    del waiting[:used_masks]
    arrays = dict(zip(part.arrays, new_arrays, strict=True))
    return ArchiveObject(
        arrays, {n: _masked(p, waiting) for n, p in part.parts.items()}
    )
