"""Records the operations of a training step without running them.

A tape records the inputs, the outputs and the gradient of each operation. The backward
pass is then derived in reverse order, as in a framework. The tensors of the forward
pass that it reads are the saved activations.
"""

from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from kerasmem.memory.estimate.analytic.framework import Framework
from kerasmem.memory.program import Op, ProgramTensor, Shape
from kerasmem.types import Variable

Tensors = Sequence[ProgramTensor]
Pullback = Callable[[ProgramTensor], Sequence[ProgramTensor | None]]

Update = Callable[[ProgramTensor, ProgramTensor], None]


@dataclass(eq=False)
class Tape:
    """The record of one step."""

    training: bool
    how: Framework = field(default_factory=Framework)
    ops: list[Op] = field(default_factory=list[Op])
    layer: str | None = None
    call: int | None = None
    phase: str = "forward"
    gradients: dict[ProgramTensor, ProgramTensor] = field(
        default_factory=dict[ProgramTensor, ProgramTensor]
    )
    _steps: list[tuple] = field(default_factory=list)

    @contextmanager
    def inside(self, layer: str | None, call: int | None = None) -> Iterator[None]:
        """Assign recorded operations to `layer` and to a call of the model."""
        before = self.layer, self.call
        self.layer, self.call = layer, call
        try:
            yield
        finally:
            self.layer, self.call = before

    def new(self, shape: Sequence[int], width: int, **more: Any) -> ProgramTensor:
        """Create a tensor of the current layer."""
        return ProgramTensor(tuple(shape), width, self.layer, **more)

    def alias(
        self, x: ProgramTensor, shape: Sequence[int] | None = None
    ) -> ProgramTensor:
        """Create a view of the memory of `x` without a gradient."""
        shape = x.shape if shape is None else tuple(shape)
        return ProgramTensor(
            shape, x.width, self.layer, x.root, x.kind, layout=x.layout
        )

    def view(self, x: ProgramTensor, shape: Sequence[int]) -> ProgramTensor:
        """Create a view of `x` in another shape, whose gradient is a view as well."""
        y = self.alias(x, shape)
        self.pull((x,), y, lambda dy: [self.alias(dy, x.shape)])
        return y

    def op(
        self,
        name: str,
        reads: Tensors,
        *outputs: ProgramTensor,
        over: Tensors = (),
        **more: Any,
    ) -> None:
        """Record an operation. `more` contains other fields of `Op`."""
        sides = tuple(reads), outputs, tuple(over)
        more = {"call": self.call, **more}
        self.ops.append(Op(name, self.layer, self.phase, *sides, **more))

    def pull(self, inputs: Tensors, output: ProgramTensor, pullback: Pullback) -> None:
        """Record the gradient of an operation.

        In the backward pass, `pullback` is called with the gradient of `output`. It
        returns one gradient per input, or `None` for inputs without a gradient.
        """
        output.differentiable = any(x.differentiable for x in inputs)
        if self.training and self.phase == "forward" and output.differentiable:
            step = tuple(inputs), output, pullback, self.layer, self.call
            self._steps.append(step)

    def backward(
        self,
        seeds: Sequence[tuple[ProgramTensor, ProgramTensor]],
        update: Update | None = None,
    ) -> None:
        """Record the backward pass.

        `update` is called with each parameter and its complete gradient.
        """
        self.phase = "backward"
        pending = Counter(x for inputs, *_ in self._steps for x in inputs)
        parts: dict[ProgramTensor, list[ProgramTensor]] = defaultdict(list)
        for x, dx in seeds:
            parts[x].append(dx)
        for inputs, output, pullback, layer, call in reversed(self._steps):
            dy = self._sum(output, parts.pop(output, []))
            with self.inside(layer, call):
                gradients = [None] * len(inputs) if dy is None else pullback(dy)
            with self.inside(layer):
                for x, dx in zip(inputs, gradients, strict=True):
                    if dx is not None and x.differentiable:
                        parts[x].append(dx)
                    pending[x] -= 1
                    if x.kind == "parameter" and not pending[x]:
                        self._finish(x, parts.pop(x, []), update)

    def _finish(
        self,
        parameter: ProgramTensor,
        parts: list[ProgramTensor],
        update: Update | None,
    ) -> None:
        gradient = self._sum(parameter, parts)
        if gradient is None:
            return
        gradient.root.kind = "gradient"
        self.gradients[parameter] = gradient
        if update is not None:
            self.phase = "optimizer"
            with self.inside(parameter.layer):
                update(parameter, gradient)
            self.phase = "backward"

    def _sum(
        self, x: ProgramTensor, parts: list[ProgramTensor]
    ) -> ProgramTensor | None:
        if len(parts) < 2:
            return parts[0] if parts else None
        total = self.new(x.shape, x.width, layout=parts[0].layout)
        self.op("add gradients", parts, total, over=parts, fusible=True)
        return total


@dataclass(frozen=True, kw_only=True)
class Site:
    """One call of a layer or operation.

    Args:
        layer: The `keras.layers.Layer` or `keras.Operation`.
        names: Argument name of each input tensor. Empty for a layer inside of another.
        shapes: Shapes of the outputs.
        width: Bytes per entry of the compute dtype.
        parameter: Returns the tensor of a variable in the compute dtype.
        inner: Records an inner layer, given the layer, its inputs and its output shape.
        step_bytes: For a recurrent layer and its sequence, returns the bytes saved per
            time step for the backward pass, and the bytes of one step.
        of_weights: Whether the call has only weights as inputs.
    """

    layer: Any
    names: tuple[str, ...]
    shapes: tuple[Shape, ...]
    width: int
    parameter: Callable[[Any], ProgramTensor]
    inner: Callable[[Any, list[ProgramTensor], Shape], ProgramTensor]
    step_bytes: Callable[[Any, ProgramTensor], tuple[int, int]]
    of_weights: bool = False

    @property
    def shape(self) -> Shape:
        """Shape of the first output."""
        return self.shapes[0]

    def weight(self, variable: Variable) -> ProgramTensor | None:
        """Return the tensor of a variable, or `None`."""
        return None if variable is None else self.parameter(variable)

    @property
    def channels_first(self) -> bool:
        """Whether the data format is channels first."""
        return getattr(self.layer, "data_format", None) == "channels_first"


Handler = Callable[[Tape, Site, list[ProgramTensor]], ProgramTensor]
