"""Iterates over the layers, the weights and the graph of a Keras model.

A model can be nested, share layers or have no graph (subclassed). Every layer and every
weight is visited once.
"""

import math
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any
from weakref import WeakKeyDictionary

import keras

from kerasmem.backends import current
from kerasmem.checks import invalid
from kerasmem.errors import ModelError
from kerasmem.graph.full_configs import full_configs
from kerasmem.graph.values import nbytes
from kerasmem.types import Layer, Model, Node, Tensor, Variable


@dataclass(frozen=True)
class Weight:
    """A weight and its location in the model.

    Args:
        block: Outermost layer around the weight that is listed in the model's config
            and is not a model with a graph.
        owner: Layer that created the weight: `block` or one of its sublayers.
        attribute: Name of the attribute of `owner` that contains the weight, or None.
        variable: The `keras.Variable`.
        index: Index of `owner` in the `sublayers` of `block`.
        models: Names of the nested models around `block`, outermost first.
    """

    block: Any
    owner: Any
    attribute: str | None
    variable: Any
    index: int
    models: tuple[str, ...] = ()

    @property
    def path(self) -> str:
        """Path of the weight including nested models, such as `"dense/kernel"`.

        Keras omits the names of Functional models, so paths are not unique there.
        """
        return _path_within(self.place, self.variable.path)

    @property
    def place(self) -> tuple[str, ...]:
        """Names that identify `block` in this model and in copies of it."""
        return (*self.models, self.block.name)

    @property
    def size(self) -> int:
        """Number of entries."""
        return math.prod(self.variable.shape)

    @property
    def nbytes(self) -> int:
        """Size in bytes."""
        return nbytes(self.variable)


def has_graph(layer: Layer) -> bool:
    """Returns whether a model has a readable graph.

    This includes Sequential and Functional models, and Functional subclasses that do
    not override `call`.
    """
    if isinstance(layer, keras.Sequential):
        return True
    if not (isinstance(layer, keras.Model) and isinstance(layer, keras.Function)):
        return False
    owner = next(kind for kind in type(layer).__mro__ if "call" in vars(kind))
    return owner.__module__.partition(".")[0] == "keras"


def lists_layers(layer: Layer) -> bool:
    """Returns whether the config of a model lists its layers.

    The config of a Functional subclass usually lists constructor arguments instead.
    """
    if isinstance(layer, keras.Sequential):
        return True
    if not has_graph(layer):
        return False
    if type(layer).__module__.startswith("keras."):
        return True
    # Cached, because writing the config of a large model is slow.
    if layer not in _LISTS_LAYERS:
        _LISTS_LAYERS[layer] = _config_lists_layers(layer)
    return _LISTS_LAYERS[layer]


_LISTS_LAYERS: WeakKeyDictionary[Layer, bool] = WeakKeyDictionary()


def _config_lists_layers(model: Model) -> bool:
    try:
        with full_configs(sublayers(model)):
            return "input_layers" in model.get_config()
    except NotImplementedError:
        return False


def blocks(model: Model) -> list[Any]:
    """Returns the layers listed in the config of `model` and of its nested models.

    A model whose config does not list its layers is a single block.
    """
    return [block for block, _ in _blocks_and_models(model)]


def _blocks_and_models(
    model: Model, around: tuple[str, ...] = ()
) -> list[tuple[Any, tuple[str, ...]]]:
    if not lists_layers(model):
        return [(model, around)]
    by_id: dict[int, tuple[Any, tuple[str, ...]]] = {}
    for layer in model.layers:
        within = (*around, layer.name) if lists_layers(layer) else around
        for block, models in _blocks_and_models(layer, within):
            by_id.setdefault(id(block), (block, models))
    return list(by_id.values())


_ON_FIRST_USE = ("StartEndPacker", "MultiSegmentPacker", "MaskedLMMaskGenerator")
"""Layers without weights that KerasHub preprocessors create on first use."""


def sublayers(layer: Layer) -> list[Any]:
    """Returns `layer` and all layers inside it, in an order that a reload preserves.

    The order is the same on all backends. Excludes layers that a KerasHub preprocessor
    creates on first use, because a reloaded model does not have them yet.
    """
    by_id: dict[int, Any] = {}
    waiting = deque([layer])
    while waiting:
        each = waiting.popleft()
        if id(each) not in by_id:
            by_id[id(each)] = each
            # First in order, then reversed, as in Keras.
            add = waiting.extend if each is layer else waiting.extendleft
            add(_direct_layers(vars(each), each._flatten_layers))
    return [x for x in by_id.values() if x is layer or not _is_packer(type(x))]


def _direct_layers(
    attributes: Mapping[str, Any], flatten: Callable[..., Iterable[Any]]
) -> list[Any]:
    # Private: `Model.layers` is incomplete, and other layers have no public list.
    layers = [*flatten(include_self=False, recursive=False)]
    if current().hides_layers_of_hub:
        own = [
            each
            for name, value in attributes.items()
            for each in ([value] if name.startswith("_") else keras.tree.flatten(value))
            if isinstance(each, keras.layers.Layer)
        ]
        layers = own + layers
    return [*{id(x): x for x in layers}.values()]


def _is_packer(cls: type) -> bool:
    is_hub = cls.__module__.startswith("keras_hub.")
    return is_hub and cls.__name__ in _ON_FIRST_USE


def without_inputs(layers: Sequence[Any]) -> list[Any]:
    """Returns layers without `InputLayer`s. A copy can have more of these."""
    inputs = keras.layers.InputLayer
    return [layer for layer in layers if not isinstance(layer, inputs)]


@contextmanager
def as_it_was(layer: Layer) -> Iterator[None]:
    """Restores the class and the attributes of a layer at the end of the scope."""
    cls, before = type(layer), dict(vars(layer))
    try:
        yield
    finally:
        # `setattr` of Keras would track the value.
        object.__setattr__(layer, "__class__", cls)
        for name in vars(layer).keys() - before.keys():
            del vars(layer)[name]
        vars(layer).update(before)


def own_variables(layer: Layer) -> list[Any]:
    """Returns the variables that `layer` created itself, without seeds."""
    # Private: `layer.weights` includes the variables of sublayers.
    return [*layer._trainable_variables, *layer._non_trainable_variables]


def weights(model: Model) -> Iterator[Weight]:
    """Yields every weight of `model` once, with its location."""
    variable_ids: set[int] = set()
    for block, models in _blocks_and_models(model):
        for index, owner in enumerate(sublayers(block)):
            for variable in own_variables(owner):
                if id(variable) not in variable_ids:
                    variable_ids.add(id(variable))
                    attribute = _attribute(owner, variable)
                    yield Weight(block, owner, attribute, variable, index, models)


def _attribute(owner: Any, variable: Variable) -> str | None:
    return next((name for name, v in vars(owner).items() if _holds(v, variable)), None)


def _holds(value: Any, variable: Variable) -> bool:
    if value is variable:
        return True
    return isinstance(value, keras.Variable) and vars(value).get("origin") is variable


def _path_within(place: tuple[str, ...], path: str) -> str:
    """Adds missing names of nested models to a path.

    A layer can have the same name as a model around it. The layer name in the path
    resolves this. Wrappers of a copy omit their names.
    """
    *models, block = place
    parts = path.split("/")
    own = [block] if block in parts else []
    if f"/{'/'.join([*models, *own])}/" in f"/{path}":
        return path
    count = next(
        n
        for n in range(len(models), -1, -1)
        if [*models[len(models) - n :], *own] == parts[: n + len(own)] or not n
    )
    return "/".join([*models[: len(models) - count], path])


def first_argument(args: tuple, kwargs: dict[str, Any]) -> Any:
    """Returns the first argument of a call, positional or by keyword."""
    return args[0] if args else next(iter(kwargs.values()))


def has_batch_statistics(model: Model) -> bool:
    """Returns whether a layer of the model normalizes over the batch."""
    kind = keras.layers.BatchNormalization
    return any(isinstance(layer, kind) for layer in sublayers(model))


def own_graph(model: Model) -> Any:
    """Returns the Functional model behind a model with a graph, or None."""
    # Private: no public attribute of a Sequential model returns its graph.
    if isinstance(model, keras.Sequential):
        return model._functional
    return model if has_graph(model) else None


def listed_graph(model: Model) -> Any:
    """Returns `own_graph` for a model whose config lists its layers, else None.

    Only such a model can be rebuilt with other layers.
    """
    return own_graph(model) if lists_layers(model) else None


def nodes_in_order(graph: Any) -> list[Any]:
    """Returns the calls of a Functional model in the order of execution."""
    # Private: public Keras does not list the tensors of each call of a shared layer.
    depths = sorted(graph._nodes_by_depth, reverse=True)
    nodes = [node for depth in depths for node in graph._nodes_by_depth[depth]]
    return [node for node in nodes if not node.is_input]


def operations(model: Model) -> list[Any]:
    """Returns the operations called in the graph, including nested models."""
    graph = listed_graph(model)
    if graph is None:
        return []
    own_operations = [node.operation for node in nodes_in_order(graph)]
    return [
        *own_operations,
        *(inner for one in own_operations for inner in operations(one)),
    ]


def readers(model: Model) -> dict[int, str]:
    """Returns the layers that read a weight of another layer (weight tying).

    The result maps the `id` of each shared variable to layer names.
    """
    layers = {
        id(one): one
        for one in operations(model)
        if isinstance(one, keras.Layer) and listed_graph(one) is None
    }
    reading: dict[int, list[Any]] = {}
    for layer in layers.values():
        for variable in layer.variables:
            reading.setdefault(id(variable), []).append(layer)
    return {
        key: ", ".join(
            repr(one.name)
            for one in several
            if key not in set(map(id, own_variables(one)))
        )
        for key, several in reading.items()
        if len(several) > 1
    }


def node_of(tensor: Tensor) -> Any:
    """Returns the call that produced a `KerasTensor`, or None."""
    # Private: Keras has no public link from a symbolic tensor to its call.
    history = getattr(tensor, "_keras_history", None)
    if history is None or history.operation is None:
        return None
    return history.operation._inbound_nodes[history.node_index]


def last_uses(nodes: Sequence[Any], outputs: Iterable[Any]) -> dict[int, int]:
    """Returns the index of the last call that uses each tensor, by `id` of the tensor.

    The index of `outputs` is `len(nodes)`.
    """
    uses = {
        id(x): number for number, node in enumerate(nodes) for x in node.input_tensors
    }
    return uses | {id(x): len(nodes) for x in outputs}


def is_trained(node: Node) -> bool:
    """Returns whether a call sets `training=True` explicitly."""
    args, kwargs = node.arguments.args, node.arguments.kwargs
    return bool(kwargs.get("training") or any(arg is True for arg in args[1:]))


def has_weights(model: Model) -> bool:
    """Returns whether all sublayers of an unbuilt model are built.

    A model with a `train_step` but no `call`, such as a GAN, is never built itself.
    """
    parts = sublayers(model)[1:]
    return bool(parts) and all(part.built for part in parts)


def of_one_class(layers: Sequence[Any], others: Sequence[Any]) -> list[tuple[Any, Any]]:
    """Returns pairs of layers at the same index that have the same class."""
    pairs = zip(layers, others, strict=False)
    return [(one, other) for one, other in pairs if type(one) is type(other)]


def has_own_step(model: Model, step: str = "train_step") -> bool:
    """Returns whether the class of a model overrides `train_step` or `test_step`."""
    return getattr(type(model), step) is not getattr(keras.Model, step)


def check_built(model: Model) -> None:
    """Checks that `model` is a Keras model with weights."""
    if not isinstance(model, keras.Model):
        raise invalid("kerasmem", "model", model, "a keras.Model")
    if not (model.built or has_weights(model)):
        raise ModelError(
            f"The model {model.name!r} has no weights yet. Build it first: call it on "
            "a batch, or add an Input."
        )
    if "_inputs_struct" in vars(model) and not isinstance(model, keras.Function):
        _restore_functional_base(type(model))


def _restore_functional_base(cls: type) -> None:
    """Restores the Functional base class of KerasHub tasks after a failed build.

    The constructor of every task resets the base class shared by all tasks. A failed
    constructor does not set the base class again, which breaks saving of all tasks.
    """
    for base in cls.__mro__:
        if base.__name__ == "PipelineModel":
            x = keras.Input((1,))
            base(x, x)
