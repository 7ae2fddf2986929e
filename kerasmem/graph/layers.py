"""Walking the layers, the weights and the graph of a Keras model.

A model is nested (models in models, layers in layers), shared (one layer in several
places) and sometimes subclassed (no graph at all). Every layer and every weight is
visited once.
"""

import math
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any
from weakref import WeakKeyDictionary

import keras

from kerasmem.checks import invalid
from kerasmem.errors import ModelError
from kerasmem.graph.full_configs import full_configs
from kerasmem.graph.values import nbytes
from kerasmem.types import Layer, Model, Node, Tensor, Variable


@dataclass(frozen=True)
class Weight:
    """One weight and the place it is kept in.

    Args:
        block: the layer that the model's config knows: the largest layer around the
            weight that is no model with a graph of its own.
        owner: the layer that created the weight, `block` itself or inside it.
        attribute: name under which `owner` keeps the weight, None if it keeps it in a
            list or not at all.
        variable: the `keras.Variable`.
        index: number of `owner` among the `sublayers` of `block`.
        models: names of the models within the model that `block` is in, outermost
            first.
    """

    block: Any
    owner: Any
    attribute: str | None
    variable: Any
    index: int
    models: tuple[str, ...] = ()

    @property
    def path(self) -> str:
        """The weight's path with the models around it, such as `"dense/kernel"`.

        Keras leaves out the names of functional models, so that two of them may have
        weights of one path.
        """
        return _path_within(self.place, self.variable.path)

    @property
    def place(self) -> tuple[str, ...]:
        """What names `block` in this model, and in others made of its config."""
        return (*self.models, self.block.name)

    @property
    def size(self) -> int:
        """Number of entries."""
        return math.prod(self.variable.shape)

    @property
    def nbytes(self) -> int:
        """Bytes in RAM."""
        return nbytes(self.variable)


def has_graph(layer: Layer) -> bool:
    """Return True for a model whose calls can be read.

    These are Sequential and Functional models, those of a class of their own too if
    their constructor makes inputs and outputs and they leave `call` to Keras.
    """
    if isinstance(layer, keras.Sequential):
        return True
    if not (isinstance(layer, keras.Model) and isinstance(layer, keras.Function)):
        return False
    owner = next(kind for kind in type(layer).__mro__ if "call" in vars(kind))
    return owner.__module__.partition(".")[0] == "keras"


def lists_layers(layer: Layer) -> bool:
    """Return True for a model whose config lists its layers.

    One that is a class of its own tells the arguments of its constructor instead.
    """
    if isinstance(layer, keras.Sequential):
        return True
    if not has_graph(layer):
        return False
    if type(layer).__module__.startswith("keras."):
        return True
    # A large model takes a good part of a second to write its config.
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
    """Return the layers that the config of `model` lists, nested models opened.

    A model whose config does not list its layers is one block: itself.
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
"""Layers without weights that KerasHub's preprocessors create on their first use."""


def sublayers(layer: Layer) -> list[Any]:
    """Return `layer` and all layers inside it, in an order that a reload keeps.

    Layers that a preprocessor of KerasHub creates on its first use are left out: a
    reloaded model does not have them yet.
    """
    # Keras offers no public walk: `Model.layers` stops at the first level, and a plain
    # layer has no such attribute.
    by_id: dict[int, Any] = {}
    for inner in layer._flatten_layers(include_self=True, recursive=True):
        by_id.setdefault(id(inner), inner)
    return [x for x in by_id.values() if x is layer or not _is_packer(type(x))]


def _is_packer(cls: type) -> bool:
    is_hub = cls.__module__.startswith("keras_hub.")
    return is_hub and cls.__name__ in _ON_FIRST_USE


def without_inputs(layers: Sequence[Any]) -> list[Any]:
    """Return layers but for those that models inside of a model may share with it.

    A copy made from its config has inputs of its own there, so more layers.
    """
    inputs = keras.layers.InputLayer
    return [layer for layer in layers if not isinstance(layer, inputs)]


@contextmanager
def as_it_was(layer: Layer) -> Iterator[None]:
    """Return a scope that restores the class and the attributes of a layer."""
    cls, before = type(layer), dict(vars(layer))
    try:
        yield
    finally:
        # Not `setattr`: that of Keras tracks what is set.
        object.__setattr__(layer, "__class__", cls)
        for name in vars(layer).keys() - before.keys():
            del vars(layer)[name]
        vars(layer).update(before)


def own_variables(layer: Layer) -> list[Any]:
    """Return the variables that `layer` created itself, seeds left out."""
    # `layer.weights` mixes the layer's own variables with those of its sublayers;
    # only these two lists tell them apart.
    return [*layer._trainable_variables, *layer._non_trainable_variables]


def weights(model: Model) -> Iterator[Weight]:
    """Yield every weight of `model` once, with the place it is kept in."""
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
    """Return a path that has the names of models in it, those that it lacks added.

    A layer may have the name of a model that it is in: where the path has the layer's
    own name, it tells which is which. Wrappers of a copy leave theirs out.
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
    """Return what a model is called on, by place or by name."""
    return args[0] if args else next(iter(kwargs.values()))


def own_graph(model: Model) -> Any:
    """Return the Functional model that a model with a graph runs, None without one."""
    # A Sequential keeps its graph in a model of its own, which nothing public returns.
    if isinstance(model, keras.Sequential):
        return model._functional
    return model if has_graph(model) else None


def listed_graph(model: Model) -> Any:
    """Return the same for a model whose config lists its layers, None for others.

    Of these only another can be made with other layers in it.
    """
    return own_graph(model) if lists_layers(model) else None


def nodes_in_order(graph: Any) -> list[Any]:
    """Return the calls of a Functional model in the order in which Keras runs them."""
    # By decreasing depth. Public Keras lists the operations, but not which call of a
    # shared one takes which tensors.
    depths = sorted(graph._nodes_by_depth, reverse=True)
    nodes = [node for depth in depths for node in graph._nodes_by_depth[depth]]
    return [node for node in nodes if not node.is_input]


def operations(model: Model) -> list[Any]:
    """Return the operations that graphs call, those of nested models among them."""
    graph = listed_graph(model)
    if graph is None:
        return []
    own_operations = [node.operation for node in nodes_in_order(graph)]
    return [
        *own_operations,
        *(inner for one in own_operations for inner in operations(one)),
    ]


def readers(model: Model) -> dict[int, str]:
    """Return the layers that read a weight of another layer, as tied layers do.

    Returns:
        Their names, by the ids of the variables that several layers read.
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
    """Return the call that made a `KerasTensor`, None where none did."""
    # Keras has no public way from a symbol back to what made it.
    history = getattr(tensor, "_keras_history", None)
    if history is None or history.operation is None:
        return None
    return history.operation._inbound_nodes[history.node_index]


def last_uses(nodes: Sequence[Any], outputs: Iterable[Any]) -> dict[int, int]:
    """Return the number of the last call that takes each tensor, by the tensor's id.

    Args:
        nodes: the calls, in order.
        outputs: tensors that are needed behind all of them: at `len(nodes)`.
    """
    uses = {
        id(x): number for number, node in enumerate(nodes) for x in node.input_tensors
    }
    return uses | {id(x): len(nodes) for x in outputs}


def is_trained(node: Node) -> bool:
    """Return True for a call that asks for training whatever the model does."""
    args, kwargs = node.arguments.args, node.arguments.kwargs
    return bool(kwargs.get("training") or any(arg is True for arg in args[1:]))


def has_weights(model: Model) -> bool:
    """Returns whether a model that is not built is made of parts that all are.

    A model with a `train_step` and no `call`, such as a GAN, is never built itself.
    """
    parts = sublayers(model)[1:]
    return bool(parts) and all(part.built for part in parts)


def of_one_class(layers: Sequence[Any], others: Sequence[Any]) -> list[tuple[Any, Any]]:
    """Return the layers in the same places of two lists that are of one class."""
    pairs = zip(layers, others, strict=False)
    return [(one, other) for one, other in pairs if type(one) is type(other)]


def has_own_step(model: Model, step: str = "train_step") -> bool:
    """Return whether the class of a model overrides `train_step`, or `test_step`."""
    return getattr(type(model), step) is not getattr(keras.Model, step)


def check_built(model: Model) -> None:
    """Raise unless `model` is a model that has its weights.

    Raises:
        ConfigError: if it is no `keras.Model`.
        ModelError: if it has no weights yet.
    """
    if not isinstance(model, keras.Model):
        raise invalid("kerasmem", "model", model, "a keras.Model")
    if not (model.built or has_weights(model)):
        raise ModelError(
            f"The model {model.name!r} has no weights yet. Build it first: call it on "
            "a batch, or give it an Input."
        )
    if "_inputs_struct" in vars(model) and not isinstance(model, keras.Function):
        _restore_functional_base(type(model))


def _restore_functional_base(cls: type) -> None:
    """Make tasks of KerasHub Functional again after one of them failed to build.

    The constructor of every task resets the base class that all tasks share, and only
    one that succeeds sets it again. Until then Keras saves and walks none of them.
    """
    for base in cls.__mro__:
        if base.__name__ == "PipelineModel":
            x = keras.Input((1,))
            base(x, x)
