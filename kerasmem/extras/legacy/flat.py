"""Weights of files that contain one list of named weights per layer.

`.h5` files and SavedModels have this format. Trainable weights come before the others.
A nested model has one list for all its layers.

TensorFlow functions in these files are neither read nor run. Keras stores the config in
`keras_metadata.pb` and the weights in the checkpoint.
"""

from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import keras
import numpy as np

from kerasmem.backends.protobuf import fields
from kerasmem.backends.tensorflow_files import Checkpoint, Node
from kerasmem.errors import ModelFileError
from kerasmem.extras.legacy.file import (
    Assignment,
    ConvertedLayer,
    LegacyFile,
    Named,
    without_wrappers,
)
from kerasmem.records.plain import MOST_BYTES, read_json
from kerasmem.records.regular import open_regular, read_regular
from kerasmem.types import Layer

Layers = Mapping[str, "Sequence[Named] | Layers"]
_Run = tuple[Any, list[Any]]
"""A layer, and consecutive variables of the layer in a file."""


def fill_by_layer(
    layers: Layers, model: ConvertedLayer, assignment: Assignment
) -> None:
    """Assign the weights of a file to the layers of a model.

    `layers` contains `(name, array)` pairs by layer name, nested for nested models.
    """
    for layer in model.layers:
        entries = layers.get(layer.name, ())
        if isinstance(entries, Mapping):
            fill_by_layer(entries, layer, assignment)
        elif layer.layer is not None:
            entries = without_wrappers(entries) if layer.is_wrapped else entries
            _fill(layer, entries, assignment)


def _fill(
    converted: ConvertedLayer, entries: Sequence[Named], assignment: Assignment
) -> None:
    trainable_runs, others = _order(converted)
    at, variable_ids = 0, set()
    for layer, layer_variables in (*trainable_runs, *others):
        variables = [v for v in layer_variables if id(v) not in variable_ids]
        variable_ids.update(map(id, variables))
        own_entries = entries[at : at + len(variables)]
        at += len(variables)
        if len(own_entries) < len(variables):
            raise ModelFileError(
                f"The file has too few weights for the layer {layer.name!r}. "
                f"Expected: {len(variables)}. Received: {len(own_entries)}."
            )
        for variable, array in _pairs(layer.name, variables, own_entries):
            assignment.put(variable, array, layer.name)
    if at < len(entries):
        raise ModelFileError(
            f"The file has an unexpected weight {entries[at][0]!r} for the layer "
            f"{converted.name!r}."
        )


def _pairs(
    layer: str, variables: Sequence[Any], entries: Sequence[Named]
) -> Iterator[tuple[Any, np.ndarray]]:
    by_name = {_within(layer, name): array for name, array in entries}
    names = [_within(layer, variable.path) for variable in variables]
    if set(names) == set(by_name) and len(by_name) == len(variables):
        yield from ((v, by_name[n]) for v, n in zip(variables, names, strict=True))
    else:
        yield from ((v, a) for v, (_, a) in zip(variables, entries, strict=True))


def _within(layer: str, path: str) -> tuple[str, ...]:
    parts = path.removesuffix(":0").split("/")
    after = len(parts) - parts[::-1].index(layer) if layer in parts else 0
    return tuple(parts[after:])


def _order(converted: ConvertedLayer) -> tuple[list[_Run], list[_Run]]:
    if not converted.layers:
        trainable_runs, others = _order_within(converted.layer)
        return [(converted.layer, trainable_runs)], [(converted.layer, others)]
    inner = [_order(child) for child in converted.layers if child.layer is not None]
    trainable_runs = [run for runs, _ in inner for run in runs]
    others = [run for _, runs in inner for run in runs]
    if converted.layer.trainable:
        return trainable_runs, others
    return [], [*trainable_runs, *others]


def _order_within(layer: Layer) -> tuple[list[Any], list[Any]]:
    own = ([*layer._trainable_variables], [*layer._non_trainable_variables])
    inner = [_order_within(child) for child in _children(layer)]
    trainable = [variable for variables, _ in inner for variable in variables]
    others = [variable for _, variables in inner for variable in variables]
    if isinstance(layer, keras.Model):  # a model lists its own variables last
        trainable, others = [*trainable, *own[0]], [*others, *own[1]]
    else:
        trainable, others = [*own[0], *trainable], [*own[1], *others]
    if layer.trainable:
        return trainable, others
    if isinstance(layer, keras.Model):
        return [], [*trainable, *others]
    return [], [*own[0], *own[1], *(v for t, n in inner for v in (*t, *n))]


def _children(layer: Layer) -> Sequence[Any]:
    if isinstance(layer, keras.Model):
        return layer.layers
    return list(layer._flatten_layers(include_self=False, recursive=False))


_METADATA = "keras_metadata.pb"
_ROOT = "root"


def read_saved_model(path: Path) -> LegacyFile:
    """Read the folder of a SavedModel.

    Raises:
        ModelFileError: If Keras 2 did not write the folder, or the folder is damaged.
    """
    metadata = _metadata(path)
    config = metadata.get("config")
    if not (isinstance(config, dict) and "layers" in config):
        raise ModelFileError(
            f"the model {metadata.get('name')!r} ({metadata.get('class_name')}) is a "
            "subclassed model, stored as TensorFlow functions without layers. "
            "Next: load it with its code, and save it with Keras 3."
        )
    folder = path / "variables"
    try:
        for file in folder.iterdir():  # TensorFlow would block on a FIFO
            open_regular(file, follow_link=True).close()
        checkpoint = Checkpoint(folder / "variables")
        layers = _layers(checkpoint, checkpoint.root, config)
    except (ValueError, KeyError, IndexError, OSError) as error:
        raise ModelFileError(f"its weights are missing or damaged ({error})") from error
    fill = partial(fill_by_layer, layers)
    return LegacyFile(metadata, metadata.get("training_config"), fill)


def _metadata(path: Path) -> dict[str, Any]:
    if not (path / _METADATA).is_file():
        raise ModelFileError(
            f"there is no {_METADATA} in the folder. Expected: a folder written by "
            "model.save of Keras 2. Next: run others with keras.layers.TFSMLayer."
        )
    try:
        content = read_regular(path / _METADATA, MOST_BYTES, follow_link=True)
        for number, value in fields(memoryview(content)):
            if number == 1 and isinstance(value, memoryview):
                node: dict[int, Any] = dict(fields(value))
                if bytes(node[3]).decode() == _ROOT:
                    text = bytes(node[5]).decode()
                    return read_json(text, object_hook=_without_wrapping)
    except (ValueError, KeyError, TypeError, IndexError) as error:
        raise ModelFileError(f"{_METADATA} is damaged") from error
    raise ModelFileError(f"{_METADATA} contains no model")


def _without_wrapping(value: dict[str, Any]) -> Any:
    if value.get("class_name") in ("__tuple__", "TensorShape") and "items" in value:
        return value["items"]
    return value


def _layers(checkpoint: Checkpoint, node: Node, config: dict[str, Any]) -> Layers:
    layers = config["layers"]
    if "output_layers" not in config:
        # The layer indices of a Sequential model do not include its input.
        layers = [layer for layer in layers if layer["class_name"] != "InputLayer"]
    weights: dict[str, Sequence[Named] | Layers] = {}
    for index, layer in enumerate(layers):
        inner, place = layer["config"], checkpoint.child(node, f"layer-{index}")
        if "layers" in inner:
            weights[inner["name"]] = _layers(checkpoint, place, inner)
        elif "variables" in place.children:
            variables = checkpoint.child(place, "variables")
            weights[inner["name"]] = list(_arrays(checkpoint, variables))
    return weights


def _arrays(checkpoint: Checkpoint, listed: Node) -> Iterator[Named]:
    for number in range(len(listed.children)):
        variable = checkpoint.child(listed, str(number))
        yield variable.name, checkpoint.array(variable)
