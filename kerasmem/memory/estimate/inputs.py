"""The inputs of a model with every length known, or one clear error."""

from collections.abc import Mapping
from typing import Any

import keras

from kerasmem.errors import ConfigError, ModelError
from kerasmem.files.data import check_data, input_names, named_leaves
from kerasmem.files.data.forms import first_samples
from kerasmem.graph.input_shapes import Shape, is_shape, open_lengths, with_lengths
from kerasmem.graph.layers import has_graph
from kerasmem.memory.estimate.request import Input


def checked_inputs(
    model: Any, batch_size: int, input_shape: Any | None
) -> tuple[Input, ...]:
    """Return the inputs of the model with every axis known.

    Args:
        model: a built model.
        batch_size: length of the batch axis.
        input_shape: shape without the batch axis, one per input by name or in order if
            there are several; None for the model's own.

    Raises:
        ModelError: if the shape of an input is not known in full.
        ConfigError: if `input_shape` does not fit the inputs.
    """
    _check_batch_axis(model, batch_size)
    own = _own_inputs(model)
    # Without a graph they are those of the first call, and others may follow.
    shapes = with_lengths(
        {name: shape for name, shape, _ in own}, input_shape, binding=has_graph(model)
    )
    unknown = open_lengths(shapes)
    if unknown:
        raise ModelError(
            "The memory depends on the length of every axis of the input. Expected: "
            f"known lengths. Received: {unknown}. Next: pass input_shape= "
            "(--input-shape), without the batch axis; for a bound, the largest one "
            "that occurs."
        )
    return tuple(
        Input(name, (batch_size, *_known(shapes[name])), dtype)
        for name, _, dtype in own
    )


def shape_for(model: Any, input_shape: Any | None, data: Any | None) -> Any | None:
    """Return the input shape that is meant: the one given, or that of example data.

    Args:
        model: a built model.
        input_shape: as in `checked_inputs`.
        data: samples in any of the forms that `kerasmem.files.data` lists.

    Raises:
        ConfigError: if both are given.
        DataError: if the data does not fit the model.
    """
    if data is None:
        return input_shape
    if input_shape is not None:
        raise ConfigError(
            "Lengths are given, or read from example data. Expected: one of the two. "
            f"Received: input_shape={input_shape!r} and data."
        )
    check_data(model, data)
    return lengths_in(model, first_samples(data)["x"])


def lengths_in(model: Any, x: Any) -> dict[str, tuple[int, ...]]:
    """Return the lengths of inputs that `model` leaves open, of samples or a batch.

    Args:
        model: a built model.
        x: arrays or tensors with a batch axis, in the model's structure.

    Returns:
        By the name of the input its shape without the batch axis, for those of
        unknown lengths: what `estimate_memory` takes as `input_shape`.
    """
    own = _own_inputs(model)
    leaves = named_leaves(x)
    if not isinstance(x, dict):
        names = (name for name, _, _ in own)
        leaves = dict(zip(names, leaves.values(), strict=False))
    return {
        name: tuple(leaves[name].shape[1:])
        for name, shape, _ in own
        if leaves.get(name) is not None
        and (shape is None or None in shape or not has_graph(model))
    }


def _known(shape: Shape | None) -> tuple[int, ...]:
    return tuple(size for size in shape or () if size is not None)


def _check_batch_axis(model: Any, batch_size: int) -> None:
    inputs = model.inputs if has_graph(model) else []
    fixed = {x.shape[0] for x in inputs if x.shape} - {None, batch_size}
    if fixed:
        raise ConfigError(
            f"The model {model.name!r} takes batches of one size only. Expected: "
            f"{min(fixed)}. Received: batch_size={batch_size}."
        )


def structure_when_built(model: Any) -> Any | None:
    """Return the inputs as a model without a graph takes them, or None if one tensor.

    Args:
        model: a built model.

    Returns:
        Lists and dicts of `keras.KerasTensor`s of the shapes that it was built with.
    """
    shapes = list((model._build_shapes_dict or {}).values())
    if len(shapes) != 1 or is_shape(shapes[0]) or not keras.tree.is_nested(shapes[0]):
        return None
    return _tensors(shapes[0], model.input_dtype)


def _tensors(shapes: Any, dtype: str) -> Any:
    # Into plain lists and dicts: Keras's own, which track, are none to JAX.
    if is_shape(shapes):
        return keras.KerasTensor(shapes, dtype)
    if isinstance(shapes, Mapping):
        return {name: _tensors(shape, dtype) for name, shape in shapes.items()}
    return [_tensors(shape, dtype) for shape in shapes]


def _own_inputs(model: Any) -> list[tuple[str, Shape | None, str]]:
    """Return name, shape without the batch axis (None if unknown) and dtype."""
    if has_graph(model):
        named = zip(input_names(model), model.inputs, strict=True)
        return [(name, tuple(x.shape[1:]), x.dtype) for name, x in named]
    # A model without a graph remembers at most the shapes that it was built with.
    structure = structure_when_built(model)
    if structure is not None:
        named = named_leaves(structure).items()
        return [(name, tuple(x.shape[1:]), x.dtype) for name, x in named]
    shapes = list((model._build_shapes_dict or {}).items())
    return [
        (name, tuple(shape[1:]) if is_shape(shape) else None, model.input_dtype)
        for name, shape in shapes
    ] or [("inputs", None, model.input_dtype)]
