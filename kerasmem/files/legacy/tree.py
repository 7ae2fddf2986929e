"""Weights of a file that numbers those of each object, as `.keras` files do."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from kerasmem.errors import ModelFileError
from kerasmem.files.legacy.assign import Assignment
from kerasmem.files.legacy.made import Made
from kerasmem.files.legacy.parts import Part
from kerasmem.files.legacy.tree_tfmot import taken_out, unwrapped
from kerasmem.graph.layers import own_variables


@dataclass(frozen=True)
class TreeWeights:
    """The weights of a file by object.

    Args:
        root: what the file keeps of the model.
    """

    root: Part

    def put_into(self, model: Made, assignment: Assignment) -> None:
        """Put them into the layers of a model.

        Raises:
            ModelFileError: if one is superfluous or of another shape.
        """
        _fill_model(model, self.root, assignment)


def _fill_model(model: Made, part: Part, assignment: Assignment) -> None:
    classes = [made.stored["class_name"] for made in model.layers]
    parts = part.parts.get("layers", Part()).listed(classes)
    for made, inner in zip(model.layers, parts, strict=True):
        if made.layers:
            _fill_model(made, inner, assignment)
        elif made.layer is not None:
            waiting = taken_out(made.stored, inner)
            _fill(made.layer, unwrapped(made.stored, inner), waiting, assignment)


def _fill(
    layer: Any, part: Part, waiting: list[np.ndarray], assignment: Assignment
) -> None:
    """Fill a layer and those within.

    Args:
        layer: of Keras 3.
        part: what the file keeps of it.
        waiting: weights that tfmot took out of the layer, in its order; emptied.
        assignment: what is done.
    """
    variables, arrays = own_variables(layer), list(part.arrays.values())
    if len(arrays) > len(variables):
        raise ModelFileError(
            f"The layer {layer.name!r} has {len(variables)} weights. Received: "
            f"{len(arrays)} in the file."
        )
    for i, variable in enumerate(variables):
        is_short = len(arrays) < len(variables) - i
        if is_short and waiting and waiting[0].shape == tuple(variable.shape):
            assignment.put(variable, waiting.pop(0), layer.name)
        elif arrays:
            assignment.put(variable, arrays.pop(0), layer.name)
    for child in layer._flatten_layers(include_self=False, recursive=False):
        _fill(child, _part_of(child, layer, part), waiting, assignment)


def _part_of(child: Any, layer: Any, part: Part) -> Part:
    """Return what the file keeps of a layer within a layer."""
    for name, found in part.parts.items():
        value = getattr(layer, name, None)
        if value is child:
            return found
        if isinstance(value, Sequence) and any(v is child for v in value):
            classes = [type(v).__name__ for v in value]
            index = next(i for i, v in enumerate(value) if v is child)
            return found.listed(classes)[index]
    return Part()
