"""Rebuilds a model call by call from its graph, with changes."""

import gc
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import keras
import numpy as np

# Private: how a Keras file records a layer that two other layers contain.
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
    """Changes to a model that is rebuilt. The base class changes nothing."""

    def goes(self, node: Node) -> bool:
        """Returns whether to omit a call and pass its first input tensor on."""
        del node
        return False

    def config(self, node: Node) -> dict[str, Any] | None:
        """Returns the changed entries of the operation's config, or None."""
        del node
        return None

    def replacement(self, node: Node) -> Sequence[Any]:
        """Returns layers that replace the operation. Empty to rebuild the operation."""
        del node
        return ()

    def arguments(self, node: Node, args: Sequence[Any]) -> Sequence[Any]:
        """Returns the positional arguments of a call in the new graph."""
        del node
        return args

    def check(self, node: Node, outputs: Sequence[Any]) -> None:
        """Raises an error if the outputs of a call in the new graph are wrong."""
        del node, outputs

    def after(self, tensor: Tensor) -> Any | None:
        """Returns a layer to insert after an input or an output of a call, or None."""
        del tensor
        return None

    def input_shape(self, tensor: Tensor) -> tuple[int | None, ...]:
        """Returns the shape of an input of the model or of a nested model."""
        return tuple(tensor.shape)

    def values(self, old: Any, new: Any) -> Iterable[tuple[Any, Any]]:
        """Returns pairs of variable and value for a new layer."""
        pairs = zip(variables(old), variables(new), strict=True)
        return [(after, to_numpy(before)) for before, after in pairs]


class InTurn:
    """A sequence of layers that replaces one operation."""

    def __init__(self, layers: Sequence[Any]) -> None:
        self.layers = list(layers)

    def __call__(self, x: Tensor, **kwargs: Any) -> Any:
        """Returns the output of the last layer."""
        for layer in self.layers:
            x = layer(x, **kwargs)
        return x


class Rebuild:
    """Rebuilds a model with a graph. `pairs` lists the old and new operations."""

    def __init__(self, rewrite: Rewrite) -> None:
        self._rewrite = rewrite
        self._renewed: dict[int, Any] = {}
        self._layers: dict[int, Any] = {}  # new layers and sublayers, by old id
        self._nodes: dict[int, Any] = {}
        self.pairs: list[tuple[Any, Any]] = []

    def run(self, model: Model) -> Any:
        """Returns the new uncompiled model. The original model is not changed."""
        scope = keras.saving.custom_object_scope(live_objects(model))
        with (
            current().replicating(model),
            scope,
            no_garbage_collection(),
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
            # Only set to False: True would unfreeze frozen layers.
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
                f"In the new model, {operation.name!r} does not accept its inputs. "
                "Next: exclude this layer, and report it as a defect. "
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
                continue  # a mask operation, which its layer creates
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
                for layer in shared:  # serializing marks the layer as shared
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
                f"The layer {old.name!r} cannot be created from its config. Next: "
                "return all constructor arguments in its `get_config`. Received: "
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
                        f"The weight {variable.path!r} expects a value of the shape "
                        f"{tuple(variable.shape)}. Received: {np.shape(value)}. Next: "
                        "exclude this layer, and report it as a defect."
                    )
                variable.assign(value)


def _check_built_as_called(name: str, shape: tuple[int, ...], new: Any) -> None:
    """Checks that the weights of a layer have the shapes implied by its calls.

    A layer built for an axis of length 1 can be called with a longer axis. A new layer
    then has more weights, although pruning only removes weights.
    """
    pairs = zip(new.shape, shape, strict=False)
    if any(now > before for now, before in pairs):
        raise ModelError(
            f"The layer {name!r} was built for other input shapes than the model "
            f"uses: its weight {new.path!r} has the shape {shape} instead of "
            f"{tuple(new.shape)}. Next: build the layer with the shape used in the "
            "model."
        )


@contextmanager
def no_garbage_collection() -> Iterator[None]:
    """Turns off the search for reference cycles in the scope."""
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()


def variable_pairs(pairs: Sequence[tuple[Any, Any]]) -> list[tuple[Any, Any]]:
    """Returns pairs of the variables of old and new layers."""
    return [
        both
        for old, new in pairs
        if listed_graph(old) is None
        for both in zip(variables(old), variables(new), strict=True)
    ]


def variables(operation: Operation) -> list[Any]:
    """Returns the variables of a layer, or an empty list for another operation."""
    if not isinstance(operation, keras.layers.Layer):
        return []
    return list(operation.variables)
