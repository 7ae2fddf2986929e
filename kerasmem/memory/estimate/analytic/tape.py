"""Operations of one training step, written down without any of them being run.

A tape records what each operation reads and writes, and how its gradient is made. The
backward pass is then derived in reverse, as a framework derives it: what it reads of
the forward pass is what must be kept.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from kerasmem.memory.estimate.analytic.scratch import Scratch
from kerasmem.memory.program import Op, Tensor

Pullback = Callable[[Tensor], Sequence[Tensor | None]]


@dataclass(eq=False, slots=True)
class _Step:
    inputs: tuple[Tensor, ...]
    output: Tensor
    pullback: Pullback
    layer: str | None
    call: int | None


@dataclass(eq=False)
class Tape:
    """The record of one step.

    Args:
        training: whether a backward pass follows, so that gradients are recorded.
        scratch: scratch space of a convolution, from its input, output and kernel.
        product_scratch: bytes of scratch space of a matrix product.
        fused_recurrence: whether cuDNN runs an LSTM in one operation.
    """

    training: bool
    scratch: Callable[[Tensor, Tensor, Tensor], Scratch]
    product_scratch: int = 0
    fused_recurrence: bool = False
    ops: list[Op] = field(default_factory=list[Op])
    layer: str | None = None
    call: int | None = None
    phase: str = "forward"
    gradients: dict[Tensor, Tensor] = field(default_factory=dict[Tensor, Tensor])
    _steps: list[_Step] = field(default_factory=list[_Step])

    @contextmanager
    def inside(self, layer: str | None, call: int | None = None) -> Iterator[None]:
        """Record operations as belonging to `layer`, and to that call of the model."""
        before = self.layer, self.call
        self.layer, self.call = layer, call
        try:
            yield
        finally:
            self.layer, self.call = before

    def new(self, shape: Sequence[int], width: int, **more: Any) -> Tensor:
        """Return a new tensor of the current layer."""
        return Tensor(tuple(shape), width, self.layer, **more)

    def alias(self, x: Tensor, shape: Sequence[int] | None = None) -> Tensor:
        """Return a name for the memory of `x` to which no gradient flows yet."""
        shape = x.shape if shape is None else tuple(shape)
        return Tensor(shape, x.width, self.layer, x.root, x.kind, layout=x.layout)

    def view(self, x: Tensor, shape: Sequence[int]) -> Tensor:
        """Return the same memory under another shape; its gradient is a view too."""
        y = self.alias(x, shape)
        self.pull((x,), y, lambda dy: [self.alias(dy, x.shape)])
        return y

    def op(
        self,
        name: str,
        reads: Sequence[Tensor],
        *outputs: Tensor,
        over: Sequence[Tensor] = (),
        **traits: Any,
    ) -> None:
        """Record an operation; `traits` are more fields of `Op`."""
        made = (tuple(reads), outputs, tuple(over))
        told = {"call": self.call, **traits}
        self.ops.append(Op(name, self.layer, self.phase, *made, **told))

    def pull(
        self, inputs: Sequence[Tensor], output: Tensor, pullback: Pullback
    ) -> None:
        """Record how a gradient of `output` becomes gradients of `inputs`.

        `pullback` takes the gradient and returns one for every input, None for those
        that need none. It runs only in the backward pass.
        """
        output.differentiable = any(x.differentiable for x in inputs)
        if self.training and self.phase == "forward" and output.differentiable:
            self._steps.append(
                _Step(tuple(inputs), output, pullback, self.layer, self.call)
            )

    def backward(
        self,
        seeds: Sequence[tuple[Tensor, Tensor]],
        on_parameter: Callable[[Tensor, Tensor], None] | None = None,
    ) -> None:
        """Record the backward pass.

        Args:
            seeds: tensors with the gradients that the pass starts from.
            on_parameter: called with a parameter and its gradient as soon as no
                operation adds to it any more.
        """
        self.phase = "backward"
        pending: dict[Tensor, int] = {}
        for step in self._steps:
            for x in step.inputs:
                pending[x] = pending.get(x, 0) + 1
        parts: dict[Tensor, list[Tensor]] = {}
        for x, dx in seeds:
            parts.setdefault(x, []).append(dx)
        for step in reversed(self._steps):
            dy = self._sum(step.output, parts.pop(step.output, []))
            with self.inside(step.layer, step.call):
                made = (
                    step.pullback(dy) if dy is not None else [None] * len(step.inputs)
                )
            with self.inside(step.layer):
                for x, dx in zip(step.inputs, made, strict=True):
                    if dx is not None and x.differentiable:
                        parts.setdefault(x, []).append(dx)
                    pending[x] -= 1
                    if x.kind == "parameter" and not pending[x]:
                        self._finish(x, parts.pop(x, []), on_parameter)

    def _finish(
        self,
        parameter: Tensor,
        parts: list[Tensor],
        on_parameter: Callable[[Tensor, Tensor], None] | None,
    ) -> None:
        gradient = self._sum(parameter, parts)
        if gradient is None:
            return
        gradient.root.kind = "gradient"
        self.gradients[parameter] = gradient
        if on_parameter is not None:
            self.phase = "optimizer"
            with self.inside(parameter.layer):
                on_parameter(parameter, gradient)
            self.phase = "backward"

    def _sum(self, x: Tensor, parts: list[Tensor]) -> Tensor | None:
        if len(parts) < 2:
            return parts[0] if parts else None
        total = self.new(x.shape, x.width, layout=parts[0].layout)
        self.op("add gradients", parts, total, over=parts, fusible=True)
        return total
