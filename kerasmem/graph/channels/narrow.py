"""The model anew, with the channels that stay."""

import gc
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import keras

from kerasmem.errors import ModelError
from kerasmem.graph.channels.call import Call
from kerasmem.graph.channels.kept import Kept
from kerasmem.graph.channels.walk import LabelledModel, family_of
from kerasmem.graph.clone import live_objects
from kerasmem.graph.nodes import nodes_in_order, own_graph
from kerasmem.graph.values import to_numpy


class Rebuild:
    """One pass over a model that makes the smaller one.

    Args:
        found: the labels of the model.
        kept: the channels that stay.
    """

    def __init__(self, found: LabelledModel, kept: Kept) -> None:
        self._found = found
        self._kept = kept
        self._renewed: dict[int, Any] = {}
        self._factors: dict[int, float] = {}
        self.pairs: list[tuple[Any, Any]] = []

    def run(self, model: Any) -> Any:
        """Return the smaller model, with the weights that stay.

        Raises:
            ModelError: if a layer cannot be made from its config.
        """
        scope = keras.saving.custom_object_scope(live_objects(model))
        with scope, _no_garbage_collection():
            smaller = self._model(model)
        self._carry_over()
        return smaller

    def _model(self, model: Any) -> Any:
        graph = own_graph(model)
        known = {id(x): self._input(x) for x in graph.inputs}
        for node in nodes_in_order(graph):
            call = self._found.calls[id(node)]
            operation = self._operation(call)
            args, kwargs = self._arguments(call, node, known)
            outputs = keras.tree.flatten(operation(*args, **kwargs))
            known.update(zip(map(id, node.outputs), outputs, strict=True))
        if isinstance(model, keras.Sequential):
            smaller = self._sequential(model, graph)
        else:
            smaller = self._functional(model, graph, known)
        if not model.trainable:
            # Only then: setting True would thaw the layers that are frozen.
            smaller.trainable = False
        return smaller

    def _functional(self, model: Any, graph: Any, known: dict[int, Any]) -> Any:
        inputs, outputs = keras.tree.map_structure(
            lambda x: known[id(x)], (graph.input, graph.output)
        )
        return type(model)(inputs=inputs, outputs=outputs, name=model.name)

    def _sequential(self, model: Any, graph: Any) -> Any:
        first = self._input(graph.inputs[0])
        layers = [self._renewed[id(layer)] for layer in model.layers]
        return keras.Sequential([first, *layers], name=model.name)

    def _input(self, x: Any) -> Any:
        config = x._keras_history.operation.get_config()
        config["batch_shape"] = self._kept.shape(self._found.tensors[id(x)])
        return keras.layers.InputLayer.from_config(config).output

    def _operation(self, call: Call) -> Any:
        old = call.operation
        if id(old) not in self._renewed:
            new = self._model(old) if own_graph(old) is not None else self._made(call)
            self._renewed[id(old)] = new
            self.pairs.append((old, new))
        return self._renewed[id(old)]

    def _made(self, call: Call) -> Any:
        old, family = call.operation, family_of(call.operation)
        try:
            config = old.get_config()
            if family is not None:
                self._factors.update(family.factors(call, self._kept))
                return type(old).from_config(config | family.config(call, self._kept))
            made = keras.saving.serialize_keras_object(old)
            made.pop("build_config", None)
            return keras.saving.deserialize_keras_object(made, safe_mode=False)
        except (TypeError, ValueError, NotImplementedError) as error:
            raise ModelError(
                f"The layer {old.name!r} cannot be made anew from its config. Give it "
                "a `get_config` that tells its arguments. Received: "
                f"{' '.join(str(error).split())[:300]}"
            ) from error

    def _arguments(
        self, call: Call, node: Any, known: dict[int, Any]
    ) -> tuple[Sequence[Any], dict[str, Any]]:
        args, kwargs = node.arguments.fill_in(known)
        family = family_of(call.operation)
        new = family.arguments(call, self._kept) if family else None
        return (args if new is None else (args[0], *new)), kwargs

    def _carry_over(self) -> None:
        """Give every new layer the weights of the old one that stay."""
        for before, after in variable_pairs(self.pairs):
            value = self._kept.gather(before, to_numpy(before))
            if value.shape != tuple(after.shape):
                raise ModelError(
                    f"The weight {before.path!r} would have the shape {value.shape}, "
                    f"but the new layer expects {tuple(after.shape)}. Ignore this "
                    "layer, and report it."
                )
            factor = self._factors.get(id(before), 1.0)
            after.assign(value if factor == 1.0 else value * factor)


@contextmanager
def _no_garbage_collection() -> Iterator[None]:
    """Return a scope for making many objects that stay: to look for others is slow."""
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
        if own_graph(old) is None
        for both in zip(_variables(old), _variables(new), strict=True)
    ]


def _variables(operation: Any) -> list[Any]:
    if not isinstance(operation, keras.layers.Layer):
        return []
    return list(operation.variables)
