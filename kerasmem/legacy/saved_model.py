"""Folders that `model.save` of Keras 2 wrote: SavedModels of TensorFlow.

The functions of TensorFlow in them are neither read nor run. What Keras put beside them
is: the config in `keras_metadata.pb`, and the weights in the checkpoint.
"""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from kerasmem.backends.checkpoint import Checkpoint, Node
from kerasmem.backends.wire import fields
from kerasmem.errors import ModelFileError
from kerasmem.legacy.file import LegacyFile
from kerasmem.legacy.flat import FlatWeights, Layers, Named
from kerasmem.records.plain import MOST_BYTES, read_json
from kerasmem.records.regular import open_regular, read_regular

_METADATA = "keras_metadata.pb"
_ROOT = "root"


def read_saved_model(path: Path) -> LegacyFile:
    """Return what the folder of a SavedModel holds.

    Raises:
        ModelFileError: if Keras 2 did not write it, or it is damaged.
    """
    metadata = _metadata(path)
    config = metadata.get("config")
    if not (isinstance(config, dict) and "layers" in config):
        raise ModelFileError(
            f"the model {metadata.get('name')!r} ({metadata.get('class_name')}) is a "
            "subclass, of which the file has functions of TensorFlow but no layers. "
            "Next: load it where its code is, and save it with Keras 3."
        )
    folder = path / "variables"
    try:
        for file in folder.iterdir():  # TensorFlow would wait for a fifo
            open_regular(file, follow_link=True).close()
        checkpoint = Checkpoint(folder / "variables")
        layers = _layers(checkpoint, checkpoint.root, config)
    except (ValueError, KeyError, IndexError, OSError) as error:
        raise ModelFileError(f"its weights are missing or damaged ({error})") from error
    return LegacyFile(metadata, metadata.get("training_config"), FlatWeights(layers))


def _metadata(path: Path) -> dict[str, Any]:
    if not (path / _METADATA).is_file():
        raise ModelFileError(
            f"there is no {_METADATA} in the folder. Expected: what model.save of "
            "Keras 2 wrote. Next: keras.layers.TFSMLayer runs any other SavedModel."
        )
    try:
        content = read_regular(path / _METADATA, MOST_BYTES, follow_link=True)
        for number, value in fields(memoryview(content)):
            if number == 1 and isinstance(value, memoryview):
                found: dict[int, Any] = dict(fields(value))
                if bytes(found[3]).decode() == _ROOT:
                    text = bytes(found[5]).decode()
                    return read_json(text, object_hook=_without_wrapping)
    except (ValueError, KeyError, TypeError, IndexError) as error:
        raise ModelFileError(f"{_METADATA} is damaged") from error
    raise ModelFileError(f"{_METADATA} tells of no model")


def _without_wrapping(value: dict[str, Any]) -> Any:
    if value.get("class_name") in ("__tuple__", "TensorShape") and "items" in value:
        return value["items"]
    return value


def _layers(checkpoint: Checkpoint, node: Node, config: dict[str, Any]) -> Layers:
    """Return the weights of a model by layer, models within it opened."""
    layers = config["layers"]
    if "output_layers" not in config:
        # A Sequential does not count its input.
        layers = [layer for layer in layers if layer["class_name"] != "InputLayer"]
    found: dict[str, Sequence[Named] | Layers] = {}
    for index, layer in enumerate(layers):
        inner, place = layer["config"], checkpoint.child(node, f"layer-{index}")
        if "layers" in inner:
            found[inner["name"]] = _layers(checkpoint, place, inner)
        elif "variables" in place.children:
            listed = checkpoint.child(place, "variables")
            found[inner["name"]] = list(_arrays(checkpoint, listed))
    return found


def _arrays(checkpoint: Checkpoint, listed: Node) -> Iterator[Named]:
    for number in range(len(listed.children)):
        variable = checkpoint.child(listed, str(number))
        yield variable.name, checkpoint.array(variable)
