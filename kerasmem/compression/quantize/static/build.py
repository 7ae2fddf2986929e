"""The model that computes with codes, made of a float one.

Layers that go on computing with floats have their kernels stored in int8.
"""

from collections.abc import Mapping
from typing import Any

import keras

from kerasmem.compression.quantize.static.base import Codes, FromCodes, ToCodes
from kerasmem.compression.quantize.static.plan import Plan, Step
from kerasmem.graph.calls import Call
from kerasmem.graph.clone import live_objects
from kerasmem.graph.layers import listed_graph, node_of


class Build:
    """One pass over a plan.

    Args:
        model: the float model; layers of it that stay float go into the new one.
        plan: what becomes of its calls.
        codes: of every tensor that has some, by its number.
        granularity: `"channel"` or `"tensor"`, what shares a scale of a kernel.
    """

    def __init__(
        self, model: Any, plan: Plan, codes: Mapping[int, Codes], granularity: str
    ) -> None:
        self.model, self.plan = model, plan
        self._codes, self._granularity = codes, granularity
        self._floats: dict[int, Any] = {}
        self._coded: dict[int, Any] = {}
        self._named: dict[str, Any] = {}
        self.layers: dict[str, Any] = {}
        # One says it for all. None where a layer is called in training mode: Keras
        # then calls those behind it so as well.
        self._warns = not any(call.is_trained for call in plan.calls.calls)

    def run(self) -> Any:
        """Return the new model; `layers` then has its layers by the names of calls."""
        graph, calls = listed_graph(self.model), self.plan.calls
        with keras.saving.custom_object_scope(live_objects(self.model)):
            inputs = [self._input(tensor) for tensor in graph.inputs]
            self._floats.update(zip(calls.inputs, inputs, strict=True))
            for call in calls.calls:
                if call.name in self.plan.steps:
                    self._integer(call, self.plan.steps[call.name])
                elif call.name not in self.plan.gone:
                    self._float(call)
            outputs = [self._as_floats(number) for number in calls.outputs]
        return keras.Model(
            keras.tree.pack_sequence_as(graph.input, inputs),
            keras.tree.pack_sequence_as(graph.output, outputs),
            name=self.model.name,
        )

    def _input(self, tensor: Any) -> Any:
        config = node_of(tensor).operation.get_config()
        self._named[config["name"]] = tensor
        return keras.layers.InputLayer.from_config(config).output

    def _integer(self, call: Call, step: Step) -> None:
        tensors = [self._as_codes(number) for number in step.inputs]
        layer = call.operation
        shape = tensors[0].shape
        if step.kind.layer is not None:
            common = {
                "inputs": [self._codes[number] for number in step.inputs],
                "output": self._codes.get(step.output),
                "activation": step.activation,
                "keeps_mask": step.keeps_mask,
                "name": self._name(call.name),
            }
            own = step.kind.arguments(call.operation, shape)
            for name in step.kind.layer.own_arguments():
                value = getattr(call.operation, name, None)
                if value is not None:
                    own.setdefault(name, value)
            layer = step.kind.layer(**own, **common)
            if step.kind.weights is not None:
                layer.build(shape)
                weights = step.kind.weights(call.operation, shape)
                layer.store(*weights, self._granularity)
        else:
            layer = type(layer).from_config(
                {**layer.get_config(), "name": self._name(call.name)}
            )
        self.layers[call.name] = layer
        outputs = self._floats if step.output in self.plan.floats else self._coded
        outputs[step.output] = layer(tensors if len(tensors) > 1 else tensors[0])

    def _float(self, call: Call) -> None:
        operation = call.operation
        if self._named.setdefault(operation.name, operation) is not operation:
            operation.name = self._name(call.name)
            self._named[operation.name] = operation
        self.layers[call.name] = operation
        known = {number: self._as_floats(number) for number in call.inputs}
        args, kwargs = call.arguments(known)
        outputs = keras.tree.flatten(operation(*args, **kwargs))
        self._floats.update(zip(call.outputs, outputs, strict=True))

    def _as_codes(self, number: int) -> Any:
        if number not in self._coded:
            name = self._name(f"{self.plan.calls.names[number]}_codes")
            layer = ToCodes((), self._codes[number], warns=self._warns, name=name)
            self._warns = False
            self._coded[number] = layer(self._floats[number])
        return self._coded[number]

    def _as_floats(self, number: int) -> Any:
        number = self.plan.number(number)
        if number not in self._floats:
            name = self._name(f"{self.plan.calls.names[number]}_floats")
            codes = self._codes[number]
            layer = FromCodes((codes,), codes, name=name)
            self._floats[number] = layer(self._coded[number])
        return self._floats[number]

    def _name(self, wanted: str) -> str:
        """Return a name that no layer has yet; Keras allows no slash in it."""
        base = wanted.replace("/", "_").replace(":", "_")
        name, count = base, 0
        while name in self._named:
            count += 1
            name = f"{base}_{count}"
        self._named[name] = None
        return name
