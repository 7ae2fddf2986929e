"""Generation on a tape: the forward pass over prompts, then rounds with a cache.

Keys and values of every layer wait while prompts go through, and are stacked to the
cache. A round makes a cache of the one before, and probabilities of the next token. How
much there is at once was read from XLA's plans, and else from KerasHub's code.
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
"""Doubt where no compiler sees all of it: the peaks of Python's loop over layers."""


def of_generation(how: Framework) -> Framework:
    """Return how a backend generates: KerasHub calls the layers, and drops outputs."""
    doubt = how.doubt if how.one_block else _WRITTEN_OUT
    return replace(how, keeps_outputs=False, doubt=doubt)


def record_generation(request: Request, how: Framework) -> Record | None:
    """Return what generates a batch of sequences, None for a model without a graph.

    Raises:
        ConfigError: if TensorFlow runs it without a compiler.
        ModelError: if its cache is not known.
    """
    model = request.model
    if request.backend == "tensorflow" and not request.jit_compile:
        raise ConfigError(
            "What TensorFlow holds in a loop that it does not compile is not known: "
            "five measured ones took up to four times what is in the graph. Expected: "
            "jit_compile=True (--jit on), as on a GPU. Received: jit_compile="
            f"{request.jit_compile} on {request.device!r}. Next: pass it."
        )
    # Nobody reads the logits of prompts: they are made only where all runs as written.
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
    # A compiler sees that nobody reads the empty cache.
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
    # A compiler goes on with the first cache; Python's frames hold it to the end.
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
