"""Names frequent causes of growth and suggests a fix for each."""

from collections.abc import Iterator
from typing import TYPE_CHECKING

from kerasmem.extras.growth.stayed import Stayed
from kerasmem.units import KIB, MIB, format_bytes

if TYPE_CHECKING:
    from kerasmem.extras.growth.scope import Scope

_MANY = 3
"""Number of graphs, or of models or arrays with one name, that counts as growth."""
_MANY_TRACES = 5
_LEAST_BYTES = 64 * KIB
_LEAST_FREE_BYTES = 64 * MIB
_LEAST_FREE_SHARE = 0.75
"""Minimum fraction of the growth, since XLA's first compilation keeps memory."""
_COPY_OF_WEIGHTS = ".best_weights[...]"


def causes(scope: "Scope") -> Iterator[tuple[str, str]]:
    """Yield the kind and the message of each cause of growth in a finished scope."""
    for name, number in scope.traced:
        if number >= _MANY_TRACES:
            yield (
                "retracing",
                f"{name}() was traced {number} more times, and traces stay. Next: pad "
                "batches to one shape (drop_remainder=True); pass numbers as tensors.",
            )
    if len(scope.graphs) >= _MANY:
        yield (
            "graphs",
            f"TensorFlow's gradient registry keeps {len(scope.graphs)} graphs of "
            f"deleted models, with {format_bytes(sum(scope.graphs))} of "
            "variables. clear_session() does not remove them. Next: scope.free() after "
            "each model, or run each trial with km.memory.isolated().",
        )
    free_bytes = scope.free_heap_bytes
    if free_bytes >= max(_LEAST_FREE_BYTES, _LEAST_FREE_SHARE * scope.host_bytes):
        yield (
            "free heap",
            f"Resident memory rose by {format_bytes(scope.host_bytes)}, including "
            f"{format_bytes(free_bytes)} of free memory that the C library caches. "
            "Next: del model and gc.collect(), or scope.free() after each model.",
        )
    for one in scope.stayed:
        yield from _models(one) if one.models else _arrays(one)
    helpers = [f"thread {name!r}" for name in scope.threads]
    helpers += [f"child process {number}" for number in scope.children]
    if helpers:
        yield (
            "workers",
            f"Workers still run: {', '.join(helpers[:_MANY])}. Workers of a dataset "
            "run until all batches are read. Next: read all batches, or use workers=1.",
        )


def _models(one: Stayed) -> Iterator[tuple[str, str]]:
    other = one.array_bytes - one.weight_bytes
    arrays = f" and {format_bytes(other)} of other arrays"
    if one.models >= _MANY and one.is_own:
        yield (
            "models",
            f"{one.models} models stayed with {format_bytes(one.weight_bytes)} of "
            f"weights{arrays if other >= _LEAST_BYTES else ''}: {one} holds "
            "them. Next: keep only scores and files, or run each trial with "
            "km.memory.isolated().",
        )
    if one.is_own and "closure" in one.through:
        yield (
            "closure",
            f"A function in memory holds a model in its closure: {one}. "
            "Next: pass the model as an argument, or delete the function.",
        )


def _arrays(one: Stayed) -> Iterator[tuple[str, str]]:
    size = format_bytes(one.array_bytes)
    # EarlyStopping keeps only one copy of the weights.
    is_copy = one.held_by.endswith(_COPY_OF_WEIGHTS)
    if "callback" in one.through and one.arrays >= _MANY and not is_copy:
        yield (
            "arrays in a callback",
            f"A callback keeps {one.arrays} arrays, {size}: {one}. Next: keep "
            "numbers, float(value), or write the arrays to a file.",
        )
    if "optimizer" in one.through and one.array_bytes >= _LEAST_BYTES:
        yield (
            "optimizer",
            f"An optimizer holds the variables of its model, {size}: {one}. Next: "
            "create an optimizer for each model, or keep its get_config().",
        )
