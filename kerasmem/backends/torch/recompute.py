"""Rematerialization in torch."""

import gc
from collections.abc import Sequence
from functools import partial
from typing import Any

import torch
from torch.utils.checkpoint import (
    checkpoint,
    get_device_states,
    set_device_states,
)

from kerasmem.backends.recompute import (
    ArgumentStore,
    Function,
    Linear,
    RecomputeBackend,
    save_arguments,
)
from kerasmem.types import Tensor, Tensors


class TorchRecompute(RecomputeBackend):
    """Rematerialization in torch."""

    def recomputed(
        self,
        function: Function,
        store: ArgumentStore | None = None,
        *,
        compiled: bool = False,
    ) -> Function:
        """Return `function` with a backward pass that saves only the arguments."""
        run = partial(_run_and_collect, function)
        if store is None:
            # An early stop is an exception. Keras's filter of tracebacks would keep it,
            # and all recomputed tensors, in a reference cycle.
            return partial(checkpoint, run, use_reentrant=False, early_stop=False)
        return lambda *tensors: _Recomputed.apply(run, store, *tensors)

    def linear(
        self, forward: Linear, transposed: Linear, inputs: Tensors, held: Sequence[Any]
    ) -> Any:
        """Return `forward(inputs, *held)`, saving only `held` for the gradient."""
        return _Linear.apply(forward, transposed, inputs, *held)


def _run_and_collect(function: Function, *tensors: Any) -> Any:
    outputs = function(*tensors)
    # Keras 3.15 keeps the inputs of layers with several inputs in reference cycles.
    # Not needed after https://github.com/keras-team/keras/pull/23111 (Keras 3.16).
    gc.collect(1)
    return outputs


class _Linear(torch.autograd.Function):
    """A linear function that recomputes its second factor for the gradient."""

    generate_vmap_rule = True

    @staticmethod
    def forward(
        forward: Linear, transposed: Linear, inputs: Tensors, *held: Any
    ) -> Any:
        del transposed
        result = forward(inputs, *held)
        # A view as output could not be modified in place by later operations.
        return result.clone() if result._is_view() else result

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        del output
        _, ctx.transposed, _, *tensors = inputs
        ctx.save_for_backward(*tensors)

    @staticmethod
    def backward(ctx: Any, *upstream: Any) -> Any:
        tensors = ctx.saved_tensors
        dx = ctx.transposed(*upstream, *tensors) if ctx.needs_input_grad[2] else None
        return None, None, dx, *(None for _ in tensors)


class _Recomputed(torch.autograd.Function):
    """A function whose arguments are saved in an `ArgumentStore`."""

    @staticmethod
    def forward(
        ctx: Any, function: Function, store: ArgumentStore, *tensors: Any
    ) -> Any:
        # Keras's dropout without a seed uses torch's generators.
        ctx.random = torch.get_rng_state(), *get_device_states(*tensors)
        outputs = tuple(function(*tensors))
        parts, ctx.restored = save_arguments(store, tensors)
        ctx.function = function
        ctx.save_for_backward(*parts)
        ctx.mark_non_differentiable(*(y for y in outputs if not y.is_floating_point()))
        return outputs

    @staticmethod
    def backward(ctx: Any, *upstream: Any) -> Any:
        needs_gradient = ctx.needs_input_grad[2:]
        arguments = [
            x.detach().requires_grad_(need)
            for x, need in zip(
                ctx.restored(ctx.saved_tensors), needs_gradient, strict=True
            )
        ]
        outputs = _rerun(ctx.function, arguments, *ctx.random)
        pairs = [
            (y, dy)
            for y, dy in zip(outputs, upstream, strict=True)
            if y.requires_grad and dy is not None
        ]
        sources = [x for x in arguments if x.requires_grad]
        dx = iter(
            torch.autograd.grad(
                [y for y, _ in pairs],
                sources,
                [dy for _, dy in pairs],
                allow_unused=True,
            )
        )
        return (None, None, *(next(dx) if need else None for need in needs_gradient))


def _rerun(
    function: Function, arguments: Any, state: Any, devices: Any, states: Any
) -> Any:
    with torch.random.fork_rng(devices), torch.enable_grad():
        torch.set_rng_state(state)
        set_device_states(devices, states)
        return function(*arguments)
