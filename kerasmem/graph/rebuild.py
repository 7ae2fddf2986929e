"""A model made anew from its graph, call by call, with what shall differ."""

import gc
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import keras
import numpy as np

# Private: how a file of Keras stores a layer that two others contain.
from keras.src.saving.serialization_lib import (  # noqa: TID251
    ObjectSharingScope,
    record_object_after_deserialization,
)

from kerasmem.backends import current
from kerasmem.errors import ModelError
from kerasmem.graph.channels.tied import is_tied, tied_anew
from kerasmem.graph.clone import live_objects
from kerasmem.graph.from_config import copy_saved_state, without_first_values
from kerasmem.graph.full_configs import full_configs
from kerasmem.graph.layers import listed_graph, node_of, nodes_in_order, sublayers
from kerasmem.graph.values import to_numpy
from kerasmem.types import Model, Node, Operation, Tensor


class Rewrite:
    """What is different in a model that is made anew: nothing, where this is not asked.

    A subclass overrides what it changes. A node is one call of an operation.
    """

    def goes(self, node: Node) -> bool:
        """Return True for a call that is left out: the first tensor in comes out."""
        del node
        return False

    def config(self, node: Node) -> dict[str, Any] | None:
        """Return the entries of the operation's config that change, None to copy it."""
        del node
        return None

    def replacement(self, node: Node) -> Sequence[Any]:
        """Return new layers for the operation's place, none to make it anew."""
        del node
        return ()

    def arguments(self, node: Node, args: Sequence[Any]) -> Sequence[Any]:
        """Return the positional arguments of a call in the new graph.

        Args:
            node: the call.
            args: what they would be, with tensors of the new graph.
        """
        del node
        return args

    def check(self, node: Node, outputs: Sequence[Any]) -> None:
        """Raise if the outputs of a call in the new graph are not what they should be.

        Args:
            node: the call.
            outputs: its `KerasTensor`s in the new graph.
        """
        del node, outputs

    def after(self, tensor: Tensor) -> Any | None:
        """Return a new layer for what is made of a tensor of the graph, or None.

        Args:
            tensor: an input of the model or an output of a call.
        """
        del tensor
        return None

    def input_shape(self, tensor: Tensor) -> tuple[int | None, ...]:
        """Return the shape of an input of the model or of one in it."""
        return tuple(tensor.shape)

    def values(self, old: Any, new: Any) -> Iterable[tuple[Any, Any]]:
        """Return the variables of a new layer, each with its value.

        Args:
            old: the layer of the original; no model with a graph.
            new: the one in its place.
        """
        pairs = zip(variables(old), variables(new), strict=True)
        return [(after, to_numpy(before)) for before, after in pairs]


class InTurn:
    """Several layers in the place of one operation.

    Args:
        layers: each takes what the one before it gives.
    """

    def __init__(self, layers: Sequence[Any]) -> None:
        self.layers = list(layers)

    def __call__(self, x: Tensor, **kwargs: Any) -> Any:
        """Return what the last layer gives."""
        for layer in self.layers:
            x = layer(x, **kwargs)
        return x


class Rebuild:
    """One pass over a model with a graph that makes another of it.

    Args:
        rewrite: what is different.

    Attributes:
        pairs: every operation that was made anew, with the new one.
    """

    def __init__(self, rewrite: Rewrite) -> None:
        self._rewrite = rewrite
        self._renewed: dict[int, Any] = {}
        self._layers: dict[int, Any] = {}  # new layers and those in them, by old ids
        self._nodes: dict[int, Any] = {}
        self.pairs: list[tuple[Any, Any]] = []

    def run(self, model: Model) -> Any:
        """Return the new model, not compiled; the one handed in is not touched.

        Raises:
            ModelError: if a layer cannot be made from its config.
        """
        scope = keras.saving.custom_object_scope(live_objects(model))
        with (
            current().replicating(model),
            scope,
            _no_garbage_collection(),
            without_first_values(),
            full_configs(sublayers(model)),
        ):
            new_model = self._model(model)
            self._carry_over()
        return new_model

    def _model(self, model: Model) -> Any:
        graph = listed_graph(model)
        self._nodes |= {id(n.operation): n for n in nodes_in_order(graph)}
        inputs = {id(x): self._input(x) for x in graph.inputs}
        tensors = {id(x): self._followed(x, inputs[id(x)]) for x in graph.inputs}
        for node in nodes_in_order(graph):
            if self._rewrite.goes(node):
                outputs = [tensors[id(node.arguments.keras_tensors[0])]]
            else:
                outputs = self._called(node, tensors)
            pairs = zip(node.outputs, outputs, strict=True)
            tensors |= {id(old): self._followed(old, new) for old, new in pairs}
        if isinstance(model, keras.Sequential):
            new_model = self._sequential(model, graph)
        else:
            new_model = self._functional(model, graph, inputs, tensors)
        if not model.trainable:
            # Only then: setting True would thaw the layers that are frozen.
            new_model.trainable = False
        return new_model

    def _called(self, node: Node, known: dict[int, Any]) -> list[Any]:
        args, kwargs = node.arguments.fill_in(known)
        args = self._rewrite.arguments(node, args)
        operation = self._operation(node)
        try:
            outputs = keras.tree.flatten(operation(*args, **kwargs))
        except (TypeError, ValueError) as error:
            raise ModelError(
                f"In the new model {operation.name!r} does not take what the layers "
                "before it give. Next: leave it out, and report it. "
                f"Received: {' '.join(str(error).split())[:300]}"
            ) from error
        self._rewrite.check(node, outputs)
        return outputs

    def _followed(self, old: Any, new: Any) -> Any:
        layer = self._rewrite.after(old)
        return new if layer is None else layer(new)

    def _functional(
        self, model: Model, graph: Any, inputs: dict[int, Any], known: dict[int, Any]
    ) -> Any:
        first = keras.tree.map_structure(lambda x: inputs[id(x)], graph.input)
        last = keras.tree.map_structure(lambda x: known[id(x)], graph.output)
        return type(model)(inputs=first, outputs=last, name=model.name)

    def _sequential(self, model: Model, graph: Any) -> Any:
        layers = [self._input(graph.inputs[0]), self._rewrite.after(graph.inputs[0])]
        for node in nodes_in_order(graph):
            if not isinstance(node.operation, keras.Layer):
                continue  # of a mask, which its layer makes anew
            new = self._renewed.get(id(node.operation))
            layers += new.layers if isinstance(new, InTurn) else [new]
            layers.append(self._rewrite.after(node.outputs[0]))
        layers = [layer for layer in layers if layer is not None]
        return keras.Sequential(layers, name=model.name)

    def _input(self, x: Tensor) -> Any:
        config = node_of(x).operation.get_config()
        config["batch_shape"] = self._rewrite.input_shape(x)
        return keras.layers.InputLayer.from_config(config).output

    def _operation(self, node: Node) -> Any:
        old = node.operation
        if id(old) not in self._renewed:
            new = (
                self._model(old)
                if listed_graph(old) is not None
                else self._new_operation(node)
            )
            self._renewed[id(old)] = new
            self.pairs.append((old, new))
        return self._renewed[id(old)]

    def _new_operation(self, node: Node) -> Any:
        old = node.operation
        others = self._rewrite.replacement(node)
        if others:
            return InTurn(others)
        if is_tied(old):
            return tied_anew(old, self.pairs)
        if isinstance(old, keras.Layer):
            return self._new_layer(node)
        return self._of_config(node, [])

    def _new_layer(self, node: Node) -> Any:
        old = node.operation
        layers = sublayers(old)
        for inner in layers[1:]:
            if id(inner) in self._nodes:
                new_inner = self._operation(self._nodes[id(inner)])
                if inner.built and not new_inner.built:
                    new_inner.build_from_config(inner.get_build_config())
        other_layers = [x for x in layers if id(x) in self._layers]
        new = self._of_config(node, other_layers)
        copies = sublayers(new)
        for layer in other_layers:
            if self._layers[id(layer)] not in copies:
                raise ModelError(
                    f"The layer {old.name!r} reads the weights of {layer.name!r}, but "
                    "its config does not contain that layer. Next: return "
                    "`keras.saving.serialize_keras_object(layer)` in its `get_config`."
                )
        for before, after in zip(layers, copies, strict=False):
            if type(before) is type(after):
                self._layers.setdefault(id(before), after)
        return new

    def _of_config(self, node: Node, shared: Sequence[Any]) -> Any:
        old = node.operation
        try:
            with ObjectSharingScope():
                for layer in shared:  # Keras marks what it serializes again
                    keras.saving.serialize_keras_object(layer)
                    record_object_after_deserialization(
                        self._layers[id(layer)], id(layer)
                    )
                changes = self._rewrite.config(node)
                if changes is not None:
                    return type(old).from_config(old.get_config() | changes)
                config = keras.saving.serialize_keras_object(old)
                for name in ("build_config", "compile_config"):
                    config.pop(name, None)
                return keras.saving.deserialize_keras_object(config, safe_mode=False)
        except (TypeError, ValueError, NotImplementedError) as error:
            raise ModelError(
                f"The layer {old.name!r} cannot be made anew from its config. Give it "
                "a `get_config` that tells its arguments. Received: "
                f"{' '.join(str(error).split())[:300]}"
            ) from error

    def _carry_over(self) -> None:
        for old, new in self.pairs:
            if listed_graph(old) is not None:
                continue
            if isinstance(old, keras.Layer) and isinstance(new, keras.Layer):
                copy_saved_state(old, new)
            for variable, value in self._rewrite.values(old, new):
                if np.shape(value) != tuple(variable.shape):
                    _check_built_as_called(old.name, np.shape(value), variable)
                    raise ModelError(
                        f"The weight {variable.path!r} would get a value of the shape "
                        f"{np.shape(value)}, but it expects {tuple(variable.shape)}. "
                        "Leave this layer out, and report it."
                    )
                variable.assign(value)


def _check_built_as_called(name: str, shape: tuple[int, ...], new: Any) -> None:
    """Check that a layer has the weights that its calls alone would give it.

    One that was built for an axis of length 1 may be called with a longer one: then a
    new one has more weights, and what is removed makes them only fewer.
    """
    pairs = zip(new.shape, shape, strict=False)
    if any(now > before for now, before in pairs):
        raise ModelError(
            f"The layer {name!r} was built for other inputs than the model calls "
            f"it with: its weight {new.path!r} has the shape {shape}, for these inputs "
            f"it would have {tuple(new.shape)}. Next: build it with inputs of the "
            "shape that it is called with."
        )


@contextmanager
def _no_garbage_collection() -> Iterator[None]:
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()


def variable_pairs(pairs: Sequence[tuple[Any, Any]]) -> list[tuple[Any, Any]]:
    """Return every variable of the old layers with the new one in its place."""
    return [
        both
        for old, new in pairs
        if listed_graph(old) is None
        for both in zip(variables(old), variables(new), strict=True)
    ]


def variables(operation: Operation) -> list[Any]:
    """Return the variables of a layer; another operation has none."""
    if not isinstance(operation, keras.layers.Layer):
        return []
    return list(operation.variables)
