"""Functions that JAX computes a second time for their gradient."""

from collections.abc import Sequence
from typing import Any

import jax

from kerasmem.backends.recompute import Function, Store, kept


def recomputed(function: Function, store: Store | None) -> Function:
    """Return `function` with a backward pass that keeps only the arguments.

    Args:
        function: a pure function of tensors.
        store: how the arguments are kept; None for as they are.
    """
    if store is None and not _forgets_barriers():
        return jax.checkpoint(function)
    return _with_own_gradient(function, store)


def _forgets_barriers() -> bool:
    # XLA for CPUs takes barriers out before it looks for what is computed twice, and
    # then keeps the first result after all: `jax.checkpoint` saves nothing there.
    return jax.default_backend() == "cpu"


def _with_own_gradient(function: Function, store: Store | None) -> Function:
    def forward(*tensors: Any) -> tuple[Any, Any]:
        parts, restored = kept(store, tensors)
        outputs, parts = _packed_first(function(*tensors), parts, tensors)
        # The rule for unpacking goes with what it unpacks, as what JAX calls static.
        return outputs, jax.tree_util.Partial(restored, *parts)

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
    """Return outputs and parts, where no output is there before all is packed.

    Else packing could be put off, and what is to be packed would stay for so long.
    """
    as_they_are = {id(x) for x in tensors}
    packed = [x for x in parts if id(x) not in as_they_are]
    outputs, packed = jax.lax.optimization_barrier((outputs, packed))
    waiting = iter(packed)
    return outputs, tuple(x if id(x) in as_they_are else next(waiting) for x in parts)


def _after(parts: tuple[Any, ...], upstream: tuple[Any, ...]) -> tuple[Any, Any]:
    """Return both, where nothing made of the parts is made before the gradients."""
    # The gradient of an output that is no float has a type that XLA does not know.
    real = [dy for dy in upstream if dy.dtype != jax.dtypes.float0]
    parts, real = jax.lax.optimization_barrier((parts, real))
    if real and _forgets_barriers():
        parts = tuple(_touched_by(real[0], x) for x in parts)
    waiting = iter(real)
    return parts, tuple(
        dy if dy.dtype == jax.dtypes.float0 else next(waiting) for dy in upstream
    )


def _touched_by(gradient: Any, x: Any) -> Any:
    """Return `x`, which for the compiler hangs on the gradient."""
    if not jax.numpy.issubdtype(x.dtype, jax.numpy.floating):
        return x
    zero = gradient.ravel()[0] * 0
    # Infinity times zero is not zero.
    zero = jax.numpy.where(jax.numpy.isfinite(zero), zero, 0)
    return x + zero.astype(x.dtype)
