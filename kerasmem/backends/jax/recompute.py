"""Rematerialization in JAX."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

import jax
from jax.core import Tracer

from kerasmem.backends.recompute import (
    ArgumentStore,
    Function,
    Linear,
    Loop,
    RecomputeBackend,
    add_dependency,
    save_arguments,
)
from kerasmem.types import Tensors


class JaxRecompute(RecomputeBackend):
    """Rematerialization in JAX."""

    def recomputed(
        self,
        function: Function,
        store: ArgumentStore | None = None,
        *,
        compiled: bool = False,
    ) -> Function:
        """Return `function` with a backward pass that saves only the arguments."""
        if store is None and not _forgets_barriers():
            return jax.checkpoint(function)
        return _with_own_gradient(function, store)

    def linear(
        self, forward: Linear, transposed: Linear, inputs: Tensors, held: Sequence[Any]
    ) -> Any:
        """Return `forward(inputs, *held)`, saving only `held` for the gradient."""
        if not isinstance(inputs, jax.Array):  # for example a sparse array
            return forward(inputs, *held)

        def backward(held: Sequence[Any], dy: Any) -> tuple[Any, ...]:
            late, (dy,) = _after(tuple(held), (dy,))
            return transposed(dy, *late), *(None for _ in held)

        run = jax.custom_vjp(forward)
        run.defvjp(lambda x, *held: (forward(x, *held), held), backward)
        return run(inputs, *held)

    def in_loop(
        self,
        looped: Callable[[Loop], Any],
        whole: Callable[[], Any],
        inputs: Tensors,
        *,
        is_packed: bool,
    ) -> Any:
        """Return `looped(loop)` in a compiled function for a CPU, else `whole()`."""
        del is_packed
        if not isinstance(inputs, Tracer):
            return whole()
        return jax.lax.platform_dependent(cpu=lambda: looped(_LOOP), default=whole)

    def after(self, value: Any, other: Any, taken: Callable[[Any], Any]) -> Any:
        """Return `taken(value)`, delayed in a trace until `other` is computed."""
        # First, because the condition reads its whole operand.
        value = taken(value)
        if not isinstance(other, Tracer) or not other.size:
            return value
        # XLA removes its barriers before scheduling for a CPU. It does not infer that a
        # boolean is never 2, so this condition remains.
        truth = jax.numpy.ravel(other)[0] != 0
        return jax.numpy.where(truth.astype("int8") == 2, 0, value).astype(value.dtype)


_PLATFORM: ContextVar[str | None] = ContextVar("platform", default=None)


@contextmanager
def traced_for(platform: str | None) -> Iterator[None]:
    """Return a context that traces steps for a platform, by default the current one."""
    token = _PLATFORM.set(platform)
    try:
        yield
    finally:
        _PLATFORM.reset(token)


def _forgets_barriers() -> bool:
    # XLA for CPUs removes barriers before common subexpression elimination and then
    # keeps the first result, so `jax.checkpoint` saves nothing.
    return (_PLATFORM.get() or jax.default_backend()) == "cpu"


def _with_own_gradient(function: Function, store: ArgumentStore | None) -> Function:
    def forward(*tensors: Any) -> tuple[Any, Any]:
        parts, restore = save_arguments(store, tensors)
        outputs, parts = _packed_first(function(*tensors), parts, tensors)
        # The restore function is a static part of the saved pytree.
        return outputs, jax.tree_util.Partial(restore, *parts)

    def backward(saved: Any, upstream: tuple[Any, ...]) -> tuple[Any, ...]:
        parts, upstream = _after(saved.args, upstream)
        _, pullback = jax.vjp(function, *saved.func(parts))
        return pullback(upstream)

    run = jax.custom_vjp(function)
    run.defvjp(forward, backward)
    return run


def _packed_first(
    outputs: tuple[Any, ...], parts: tuple[Any, ...], tensors: Sequence[Any]
) -> tuple[tuple[Any, ...], tuple[Any, ...]]:
    """Return outputs and parts, with all outputs delayed until the parts are packed.

    Otherwise XLA could delay packing and keep the unpacked tensors.
    """
    as_they_are = {id(x) for x in tensors}
    new_parts = [x for x in parts if id(x) not in as_they_are]
    outputs, new_parts = jax.lax.optimization_barrier((outputs, new_parts))
    waiting = iter(new_parts)
    return outputs, tuple(x if id(x) in as_they_are else next(waiting) for x in parts)


def _after(parts: tuple[Any, ...], upstream: tuple[Any, ...]) -> tuple[Any, Any]:
    # Gradients of integer outputs have the dtype float0, which XLA does not support.
    real = [dy for dy in upstream if dy.dtype != jax.dtypes.float0]
    parts, real = jax.lax.optimization_barrier((parts, real))
    if real and _forgets_barriers():
        parts = tuple(add_dependency(parts, real[0]))
    waiting = iter(real)
    return parts, tuple(
        dy if dy.dtype == jax.dtypes.float0 else next(waiting) for dy in upstream
    )


def _loop(function: Callable[[Any], Any], count: int) -> Any:
    return jax.lax.map(function, jax.numpy.arange(count))


_LOOP = Loop(_loop, block_bytes=1 << 20)
