"""A batch of the shapes that a model takes and is compared with."""

import inspect
from typing import Any

import keras

from kerasmem.graph.layers import has_graph
from kerasmem.memory.estimate.inputs import structure_when_built
from kerasmem.memory.estimate.request import Input, Request
from kerasmem.memory.program import Tensor
from kerasmem.memory.timeline import Watched


def symbolic_batch(request: Request) -> tuple[Any, ...]:
    """Return what a step gets: `(x, y)` of `keras.KerasTensor`s, `(x,)` in predict."""
    x = _like_inputs(request.model, [_tensor(one) for one in request.inputs])
    if not request.training:
        return (x,)
    return x, _targets(request.model, x)


def as_tensors(model: Watched) -> tuple[Tensor, ...]:
    """Return the variables of a model as a program has them."""
    return tuple(
        Tensor((v.nbytes,), 1, v.layer, kind=v.category) for v in model.variables
    )


def _tensor(one: Input) -> Any:
    return keras.KerasTensor(one.shape, dtype=one.dtype)


def _like_inputs(model: Any, tensors: list[Any]) -> Any:
    # Private: whether a model takes a list or a dict, and of which names.
    structure = getattr(model, "_inputs_struct", None)
    if structure is None and not has_graph(model):
        structure = structure_when_built(model)
    if isinstance(model, keras.Sequential) or structure is None:
        return tensors[0] if len(tensors) == 1 else tensors
    return keras.tree.pack_sequence_as(structure, tensors)


def _targets(model: Any, x: Any) -> Any:
    """Return targets of the shapes that the model's losses compare with."""
    takes_training = "training" in inspect.signature(model.call).parameters
    options = {"training": False} if takes_training else {}
    outputs = keras.tree.map_structure(
        lambda spec: spec, model.compute_output_spec(x, **options)
    )
    losses = keras.tree.flatten(model.loss)
    found = keras.tree.flatten(outputs)
    losses *= len(found) if len(losses) == 1 else 1
    targets = [_target(out, loss) for out, loss in zip(found, losses, strict=False)]
    return keras.tree.pack_sequence_as(outputs, targets)


def _target(output: Any, loss: Any) -> Any:
    name = loss if isinstance(loss, str) else getattr(loss, "name", None)
    name = name or getattr(loss, "__name__", type(loss).__name__)
    if "sparse" in name.lower():
        return keras.KerasTensor(output.shape[:-1], dtype="int32")
    return keras.KerasTensor(output.shape, dtype=keras.backend.floatx())
