"""Usual causes of growth by name, each with its remedy."""

import re
from collections.abc import Iterator
from typing import TYPE_CHECKING

from kerasmem import backends
from kerasmem.units import format_bytes

if TYPE_CHECKING:
    from kerasmem.extras.growth.scope import Scope, Stayed

_MANY = 3
"""Models or groups of arrays of one name from which on they are many."""
_MANY_TRACES = 5
_LEAST_BYTES = 64 * 1024
_LEAST_FREE_BYTES = 64 * 2**20
_LEAST_FREE_SHARE = 0.75
"""Of the growth: what XLA compiles for the first time leaves more than it frees."""
_COPY_OF_WEIGHTS = ".best_weights[...]"
# Keras writes what a layer was called with below the framework's error.
_SOFTMAX_CALL = re.compile(
    r"calling Softmax\.call\(\).*inputs=\S*shape=\D*(?P<shape>[\d, ]+).*mask=(?!None)",
    re.DOTALL,
)


def causes(scope: "Scope") -> Iterator[tuple[str, str]]:
    """Yield kind and sentences of each cause that a scope shows.

    Args:
        scope: one that has ended.
    """
    yield from _retracing(scope)
    yield from _graphs(scope)
    yield from _free_heap(scope)
    for one in scope.stayed:
        yield from _held(one)
    yield from _helpers(scope)
    yield from _unrolled_steps(scope)
    yield from _masked_softmax(scope)


def _retracing(scope: "Scope") -> Iterator[tuple[str, str]]:
    for name, number in scope.traced:
        if number >= _MANY_TRACES:
            yield (
                "retracing",
                f"{name}() was traced {number} times more. Each new shape, and each "
                "new Python number in its arguments, makes a program that stays. Next: "
                "pad batches to one shape (drop_remainder=True), and pass numbers as "
                "tensors.",
            )


def _graphs(scope: "Scope") -> Iterator[tuple[str, str]]:
    if len(scope.graphs) >= _MANY:
        yield (
            "graphs",
            f"TensorFlow's registry of gradients holds {len(scope.graphs)} graphs that "
            f"nothing runs, and {format_bytes(sum(scope.graphs))} of variables. "
            "Each step that is traced registers one (tf.custom_gradient in Keras's "
            "optimizers), and clear_session() takes none out. Next: scope.free() after "
            "each model, or run each trial by km.memory.isolated().",
        )


def _free_heap(scope: "Scope") -> Iterator[tuple[str, str]]:
    free_bytes = scope.free_heap_bytes
    if free_bytes >= max(_LEAST_FREE_BYTES, _LEAST_FREE_SHARE * scope.host_bytes):
        yield (
            "free heap",
            f"Resident memory rose by {format_bytes(scope.host_bytes)}, of which "
            f"{format_bytes(free_bytes)} are free: nothing holds them, the C library "
            "keeps them for later. Models that wait for Python's garbage collector "
            "make its heap so large. Next: scope.free() after each model gives it "
            "back, del model and gc.collect() keep it small.",
        )


def _held(one: "Stayed") -> Iterator[tuple[str, str]]:
    is_local = one.where.startswith("a ")
    place = f"{one.held_by}, {one.where}" if is_local else one.held_by
    other = one.array_bytes - one.weight_bytes
    arrays = f" and {format_bytes(other)} of other arrays"
    # EarlyStopping has one copy of the weights, whatever the number of epochs.
    is_copy = one.held_by.endswith(_COPY_OF_WEIGHTS)
    if one.models >= _MANY and one.is_own:
        yield (
            "models",
            f"{one.models} models stayed with {format_bytes(one.weight_bytes)} of "
            f"weights{arrays * (other >= _LEAST_BYTES)}: {place} holds them. "
            "Next: keep what you compare, such as scores and files, or run each "
            "trial by km.memory.isolated().",
        )
    if one.models and one.is_own and "closure" in one.through:
        yield (
            "closure",
            f"A function that stayed holds a model in its closure: {place}. "
            "Next: pass the model as an argument, or drop the function.",
        )
    if one.models:
        return
    if "callback" in one.through and one.arrays >= _MANY and not is_copy:
        yield (
            "arrays in a callback",
            f"A callback keeps {one.arrays} arrays, {format_bytes(one.array_bytes)}: "
            f"{place}. Next: keep numbers, float(value), or write arrays to a file.",
        )
    if "optimizer" in one.through and one.array_bytes >= _LEAST_BYTES:
        yield (
            "optimizer",
            "An optimizer that was kept holds the variables of its model, "
            f"{format_bytes(one.array_bytes)}: {place}. Next: make an optimizer for "
            "each model, keep its get_config().",
        )


def _helpers(scope: "Scope") -> Iterator[tuple[str, str]]:
    if scope.threads or scope.children:
        which = [f"thread {name!r}" for name in scope.threads]
        which += [f"child process {number}" for number in scope.children]
        yield (
            "workers",
            f"Helpers still run: {', '.join(which[:_MANY])}. A data set with workers "
            "keeps them, and its queue, until it was read to the end. Next: read it to "
            "the end, or use workers=1 and tf.data for the speed.",
        )


def _unrolled_steps(scope: "Scope") -> Iterator[tuple[str, str]]:
    if not backends.current().unrolls_steps or not scope.traces:
        return
    for model in scope.models:
        steps = getattr(model, "steps_per_execution", 1)
        if isinstance(steps, int) and steps > 1:
            yield (
                "steps_per_execution",
                f"The model {model.name!r} was compiled with steps_per_execution="
                f"{steps}: on JAX each of them is traced and compiled, so the program "
                f"is {steps} times as large. Next: leave it out on JAX.",
            )


def _masked_softmax(scope: "Scope") -> Iterator[tuple[str, str]]:
    found = _SOFTMAX_CALL.search(scope.out_of_memory or "")
    if found:
        yield (
            "masked softmax",
            "Memory ran out in a masked softmax over scores of "
            f"shape ({found['shape']}). Operation by operation, as torch runs it, the "
            "scores, their masked copy and the probabilities are there at one time. "
            "Next: flash_attention=True, or queries in parts: attention over some of "
            "them at a time needs a part of the scores.",
        )
