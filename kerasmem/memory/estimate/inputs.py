"""Model inputs with known lengths, and batches of these shapes."""

import inspect
from collections.abc import Mapping
from typing import Any

import keras
import numpy as np

from kerasmem.errors import ConfigError, ModelError
from kerasmem.files.data import check_data, input_names, named_leaves
from kerasmem.files.data.forms import first_samples
from kerasmem.files.data.tokens import as_samples
from kerasmem.graph.input_shapes import (
    Shape,
    fixed_batch,
    is_shape,
    once_per_input,
    open_lengths,
    with_lengths,
)
from kerasmem.graph.layers import has_own_step, own_graph
from kerasmem.memory.estimate.generation import generated_shapes
from kerasmem.memory.estimate.request import Input, Request
from kerasmem.memory.program import ProgramTensor
from kerasmem.memory.timeline import Watched
from kerasmem.types import Dataset, Model, Tensor, Tensors


def checked_inputs(
    model: Model,
    batch_size: int,
    input_shape: Any | None,
    data: Dataset | None = None,
    *,
    generate: int | None = None,
) -> tuple[Input, ...]:
    """Return the inputs of the model with all axes known.

    `generate` is the length of sequences without a given shape.

    Raises:
        ModelError: If the shape of an input is not completely known.
        ConfigError: If `input_shape` does not fit the inputs, or `data` is passed too.
        DataError: If the data does not fit the model.
    """
    if data is not None:
        if input_shape is not None:
            raise ConfigError(
                "Expected: either `input_shape` or `data`. Received: "
                f"input_shape={input_shape!r} and data."
            )
        (data,) = as_samples(model, data)
        check_data(model, data)
        input_shape = lengths_in(model, first_samples(data)["x"])
    is_read = own_graph(model) is not None
    fixed_size = fixed_batch(model)
    if fixed_size not in {None, batch_size}:
        raise ConfigError(
            f"The model {model.name!r} has a fixed batch size. Expected: "
            f"{fixed_size}. Received: batch_size={batch_size}."
        )
    own = _own_inputs(model)
    if generate is not None:
        open_shapes = {name: shape for name, shape, _ in own}
        input_shape = generated_shapes(open_shapes, generate, input_shape)
    # Without a graph, the shapes are from the first call, and later calls may differ.
    shapes = {name: shape for name, shape, _ in own}
    shapes = with_lengths(shapes, input_shape, binding=is_read)
    unknown = open_lengths(shapes)
    if unknown:
        # A custom step may use other data than the inputs of the model.
        length = " or --length" if "token_ids" in shapes else ""
        shape = (
            f"input_shape= (--input-shape{once_per_input(shapes)}{length}) without the "
            "batch axis, or "
        )
        raise ModelError(
            "The memory depends on the length of every axis of the input. Expected: "
            f"known lengths. Received: {unknown}. Next: pass "
            f"{'' if has_own_step(model) else shape}data= with example samples. For an "
            "upper bound, use the largest lengths."
        )
    tokens = shapes.get("token_ids")
    if generate is not None and tokens not in (None, (generate,)):
        raise ConfigError(
            "`token_ids` needs the length of the generated sequences. Expected: "
            f"token_ids of shape {(generate,)}, or no shape. Received: {tokens}."
        )
    return tuple(
        Input(name, (batch_size, *(n for n in shapes[name] or () if n)), dtype)
        for name, _, dtype in own
    )


def example_labels(
    model: Model, data: Dataset, batch_size: int
) -> tuple[Any, Any] | None:
    """Return labels and sample weights of a batch, as in `Request.labels`.

    Returns:
        `None` if the labels are not arrays of numbers, or if a standard Keras step
        would need missing labels.
    """

    def spec(array: Any) -> Input:
        dtype = keras.backend.standardize_dtype(array.dtype)
        dtype = keras.config.floatx() if dtype == "float64" else dtype
        return Input("", (batch_size, *map(int, array.shape[1:])), dtype)

    parts = first_samples(data)
    labels = parts.get("y"), parts.get("sample_weight")
    if labels[0] is None and not has_own_step(model):
        return None
    try:
        return keras.tree.map_structure(spec, labels, none_is_leaf=False)
    except (AttributeError, TypeError, ValueError):
        return None


def lengths_in(model: Model, x: Tensor) -> dict[str, tuple[int, ...]]:
    """Return the shapes in `x` of inputs for which `model` allows variable lengths.

    Returns:
        Shapes without the batch axis by input name, as `input_shape` of
        `estimate_memory`.
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
        and (shape is None or None in shape or own_graph(model) is None)
    }


def structure_when_built(model: Model) -> Any | None:
    """Return the input structure with which a model without a graph was built.

    Returns:
        Lists and dicts of `keras.KerasTensor`s, or `None` for a single tensor.
    """
    shapes = list((model._build_shapes_dict or {}).values())
    if len(shapes) != 1 or is_shape(shapes[0]) or not keras.tree.is_nested(shapes[0]):
        return None
    return _tensors(shapes[0], model.input_dtype)


def _tensors(shapes: Any, dtype: str) -> Any:
    # JAX does not treat Keras's tracked lists and dicts as containers.
    if is_shape(shapes):
        return keras.KerasTensor(shapes, dtype)
    if isinstance(shapes, Mapping):
        return {name: _tensors(shape, dtype) for name, shape in shapes.items()}
    return [_tensors(shape, dtype) for shape in shapes]


def _own_inputs(model: Model) -> list[tuple[str, Shape | None, str]]:
    if own_graph(model) is not None:
        named_tensors = zip(input_names(model), model.inputs, strict=True)
    # A model without a graph stores at most the shapes with which it was built.
    elif (structure := structure_when_built(model)) is not None:
        named_tensors = named_leaves(structure).items()
    else:
        shapes = (model._build_shapes_dict or {"inputs": None}).items()
        named_shapes = [
            (name, s[1:] if s and is_shape(s) else None) for name, s in shapes
        ]
        return [(name, s and tuple(s), model.input_dtype) for name, s in named_shapes]
    return [(name, tuple(x.shape[1:]), x.dtype) for name, x in named_tensors]


_OF_MASKS = {"padding_mask": "bool"}


def symbolic_batch(request: Request) -> Any:
    """Return the batch of a step as a nest of `keras.KerasTensor`s.

    A training step receives the example data, packed as in `fit`, or else `(x, y)` with
    guessed labels. Other steps receive `(x,)`.
    """
    x = like_inputs(
        request.model,
        [keras.KerasTensor(one.shape, one.dtype) for one in request.inputs],
    )
    if request.step == "generate":
        # KerasHub preprocessors return boolean masks, but Keras inputs are integers.
        x = {
            k: keras.KerasTensor(v.shape, _OF_MASKS.get(k, v.dtype))
            for k, v in x.items()
        }
    if not request.training:
        return (x,)
    if request.labels is None:
        return x, _targets(request.model, x)
    labels = keras.tree.map_structure(
        lambda spec: keras.KerasTensor(spec.shape, spec.dtype),
        request.labels,
        none_is_leaf=False,
    )
    return keras.utils.pack_x_y_sample_weight(x, *labels)


def zeros(request: Request) -> Any:
    """Return a batch of zeros and empty strings, see `symbolic_batch`."""

    def array(spec: Any) -> np.ndarray:
        if spec.dtype == "string":
            return np.full(spec.shape, "")
        return np.zeros(spec.shape, "float32" if "float" in spec.dtype else spec.dtype)

    return keras.tree.map_structure(array, symbolic_batch(request))


def run_once(request: Request, batch: Tensors) -> None:
    """Run one step. The model is trained, so it must be a copy."""
    model = request.model
    parts = keras.utils.unpack_x_y_sample_weight(batch)
    if not request.training:
        model.predict_on_batch(parts[0])
        return
    if has_own_step(model):  # `fit` passes only the parts that are not `None`.
        x, y, weight = parts
        samples = len(keras.tree.flatten(x)[0])
        model.fit(
            x, y, sample_weight=weight, batch_size=samples, shuffle=False, verbose=0
        )
        return
    model.train_on_batch(*parts)


def like_inputs(model: Model, tensors: list[Any]) -> Any:
    """Return the tensors in the structure of the inputs of `model`."""
    # Private API: the structure and the names of the inputs.
    structure = getattr(model, "_inputs_struct", None)
    if structure is None and own_graph(model) is None:
        structure = structure_when_built(model)
    if isinstance(model, keras.Sequential) or structure is None:
        return tensors[0] if len(tensors) == 1 else tensors
    return keras.tree.pack_sequence_as(structure, tensors)


def _targets(model: Model, x: Tensor) -> Any:
    takes_training = "training" in inspect.signature(model.call).parameters
    options = {"training": False} if takes_training else {}
    outputs = model.compute_output_spec(x, **options)
    outputs = keras.tree.map_structure(lambda spec: spec, outputs)
    losses = keras.tree.flatten(model.loss)
    flat_outputs = keras.tree.flatten(outputs)
    losses *= len(flat_outputs) if len(losses) == 1 else 1
    targets = [
        _target(out, loss) for out, loss in zip(flat_outputs, losses, strict=False)
    ]
    return keras.tree.pack_sequence_as(outputs, targets)


_OF_LABELS = ("sparse", "chunkedcrossentropy")
"""Substrings in the names of losses that accept integer labels."""


def _target(output: Tensor, loss: Any) -> Any:
    name = loss if isinstance(loss, str) else getattr(loss, "name", None)
    name = name or getattr(loss, "__name__", "")
    names = f"{name} {type(loss).__name__}".lower()
    if any(word in names for word in _OF_LABELS):
        return keras.KerasTensor(output.shape[:-1], dtype="int32")
    return keras.KerasTensor(output.shape, dtype=keras.backend.floatx())


def as_tensors(model: Watched) -> tuple[ProgramTensor, ...]:
    """Return the variables of a model as program tensors."""
    return tuple(
        ProgramTensor((v.nbytes,), 1, v.layer, kind=v.category) for v in model.variables
    )
