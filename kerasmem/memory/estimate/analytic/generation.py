"""Records generation on a tape: a forward pass over prompts, then a loop with a cache.

Keys and values of every layer are kept during the forward pass and stacked into the
cache. An iteration computes a new cache and the probabilities of the next token. The
amount of simultaneous memory was determined from XLA plans and KerasHub's code.
"""

from collections.abc import Sequence
from dataclasses import replace

from kerasmem.errors import ConfigError
from kerasmem.memory.estimate.analytic.framework import Framework
from kerasmem.memory.estimate.analytic.layers.common import FLOAT
from kerasmem.memory.estimate.analytic.record import Record, record
from kerasmem.memory.estimate.generation import KeyValueCache, cache_of
from kerasmem.memory.estimate.request import Request
from kerasmem.memory.program import Op, ProgramTensor

_WRITTEN_OUT = (0.35, 1.1)
"""Relative error without a compiler, caused by Python's loop over layers."""


def of_generation(how: Framework) -> Framework:
    """Return the framework for generation: KerasHub calls layers and drops outputs."""
    doubt = how.doubt if how.one_block else _WRITTEN_OUT
    return replace(how, keeps_outputs=False, doubt=doubt)


def record_generation(request: Request, how: Framework) -> Record | None:
    """Record the generation of a batch. Returns `None` for a model without a graph.

    Raises:
        ConfigError: If TensorFlow does not compile the generation.
        ModelError: If the cache is not supported.
    """
    model = request.model
    if request.backend == "tensorflow" and not request.jit_compile:
        raise ConfigError(
            "The memory of generation on TensorFlow without compilation is unknown. "
            "Five measured models used up to four times the memory of the graph. "
            "Expected: jit_compile=True (--jit on), as on a GPU. Received: jit_compile="
            f"{request.jit_compile} on {request.device!r}. Next: pass jit_compile=True."
        )
    # A compiler removes the unused logits of prompts.
    source = model.backbone if how.one_block else model
    forward = record(replace(request, model=source), how)
    if forward is None:
        return None
    cache, step = cache_of(request), forward.step
    samples = request.of_a_replica().batch_size * cache.beams
    entries = samples * model.outputs[0].shape[-1]
    before, cache_tensor, after = _prefill(cache, how, step.results)
    rounds, last = _rounds(cache, how, cache_tensor, entries * FLOAT)
    ops = (*before, *step.ops, *after, *rounds)
    return replace(forward, step=replace(step, ops=ops, results=(*step.results, last)))


def _prefill(
    cache: KeyValueCache, how: Framework, results: Sequence[ProgramTensor]
) -> tuple[list[Op], ProgramTensor, list[Op]]:
    waiting = round(cache.nbytes * (cache.merged if how.one_block else 1))
    early = _cache(waiting - waiting // cache.layers)
    last, cache_tensor = _cache(waiting // cache.layers), _cache(cache.nbytes)
    # A compiler removes the empty cache, which has no reader.
    empty = _cache(0 if how.one_block else cache.nbytes)
    before = [_op("empty cache", (), empty), _op("keys and values", (), early)]
    after = [
        _op("keys and values", (*results, empty), last),
        _op("stack", (early, last, empty), cache_tensor),
    ]
    return before, cache_tensor, after


def _rounds(
    cache: KeyValueCache, how: Framework, stacked: ProgramTensor, probabilities: int
) -> tuple[list[Op], ProgramTensor]:
    size = cache.nbytes * cache.beams
    old, new = _cache(size), _cache(size)
    by_layer = _cache(0 if how.one_block else size)
    # A compiler reuses the first cache. Python's frames keep it until the end.
    first_cache = () if how.one_block else (stacked,)
    over = (stacked,) if cache.beams == 1 else ()
    ops = [
        _op("beams", (stacked,), old, over=over),
        _op("keys and values", (old,), by_layer),
        _op("stack", (by_layer, old, *first_cache), new),
        _op("probabilities", (new,), workspace=probabilities),
    ]
    if cache.beams > 1:
        beams = _cache(size)
        ops.append(_op("choose beams", (new,), beams))
        new = beams
    return ops, new


def _cache(nbytes: int) -> ProgramTensor:
    return ProgramTensor((nbytes,), 1, kind="cache")


def _op(
    name: str, reads: Sequence[ProgramTensor], *writes: ProgramTensor, **more: object
) -> Op:
    return Op(name, None, "forward", tuple(reads), writes, **more)  # pyright: ignore[reportArgumentType]
