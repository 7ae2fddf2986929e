"""The forward pass of a model, written on a tape from the calls in its graph."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from kerasmem.graph.nodes import Call, Trace
from kerasmem.memory.estimate.analytic import primitives as p
from kerasmem.memory.estimate.analytic.layers.common import unknown
from kerasmem.memory.estimate.analytic.site import Handler, Site
from kerasmem.memory.estimate.analytic.tape import Tape
from kerasmem.memory.estimate.precision import Precision, width
from kerasmem.memory.program import Tensor


@dataclass
class Forward:
    """The forward pass on a tape.

    Args:
        tape: the tape.
        handlers: what each class of layer does, by its name.
        precision: the types that layers compute with.
        inputs: the model's inputs, once run.
        made: the outputs of every call, once run.
        unknown: classes of layers that no table knows, once run.
    """

    tape: Tape
    handlers: Mapping[str, Handler]
    precision: Precision
    inputs: list[Tensor] = field(default_factory=list[Tensor])
    made: list[Tensor] = field(default_factory=list[Tensor])
    unknown: set[str] = field(default_factory=set[str])
    _parameters: dict[int, Tensor] = field(default_factory=dict[int, Tensor])
    _known: dict[int, Tensor] = field(default_factory=dict[int, Tensor])

    def run(self, trace: Trace) -> list[Tensor]:
        """Record every call and return the model's outputs."""
        for number, call in enumerate(trace.calls):
            with self.tape.inside(_path(call), number):
                self._call(call) if call.inputs else self._input(call)
        return [self._known[id(x)] for x in trace.outputs]

    def _input(self, call: Call) -> None:
        for spec in call.outputs:
            x = self.tape.new(spec.shape, width(spec.dtype))
            x.kind, x.differentiable = "input", False
            self.tape.op("input", (), x)
            self._known[id(spec)] = x
            self.inputs.append(x)

    def _call(self, call: Call) -> None:
        layer = call.operation
        size = self.precision.compute_width(layer, call.outputs[0].dtype)
        xs = [self._known[id(x)] for x in call.inputs]
        if getattr(layer, "autocast", False):
            pairs = zip(xs, call.inputs, strict=True)
            xs = [self._cast(x, str(spec.dtype), size) for x, spec in pairs]
        xs += [self.parameter(v, size) for v in call.variables]
        shapes = tuple(tuple(y.shape) for y in call.outputs)
        y = self.layer(layer, xs, shapes, size, call.names)
        self._known[id(call.outputs[0])] = y
        self.made.append(y)
        for spec in call.outputs[1:]:
            part = self.tape.new(spec.shape, size)
            self.tape.op("part", (y,), part)
            self._known[id(spec)] = part

    def layer(
        self,
        layer: Any,
        xs: list[Tensor],
        shapes: tuple[Any, ...],
        size: int,
        names: tuple[str, ...] = (),
    ) -> Tensor:
        """Record one layer and return its first output."""
        name = type(layer).__name__
        handler = self.handlers.get(name)
        if handler is None:
            self.unknown.add(name)
            handler = unknown
        site = Site(
            layer=layer,
            names=names,
            shapes=shapes,
            width=size,
            weight=self._weight(size),
            inner=lambda inner, ins, shape: self.layer(inner, ins, (shape,), size),
        )
        return handler(self.tape, site, xs)

    def parameter(self, variable: Any, size: int) -> Tensor:
        """Return a variable in the type that a layer computes with."""
        if id(variable) not in self._parameters:
            self._parameters[id(variable)] = Tensor(
                tuple(variable.shape),
                self.precision.variable_width(variable),
                _path_of(variable),
                kind="parameter",
                differentiable=bool(variable.trainable),
            )
        return p.converted(self.tape, self._parameters[id(variable)], size)

    def _weight(self, size: int) -> Callable[[Any], Tensor | None]:
        return lambda v: None if v is None else self.parameter(v, size)

    def _cast(self, x: Tensor, dtype: str, size: int) -> Tensor:
        return p.converted(self.tape, x, size) if "float" in dtype else x


def _path(call: Call) -> str:
    owner = call.operation
    if not hasattr(owner, "path") and call.owner is not None:
        owner = call.owner
    return getattr(owner, "path", None) or owner.name


def _path_of(variable: Any) -> str | None:
    return variable.path.rpartition("/")[0] or None
