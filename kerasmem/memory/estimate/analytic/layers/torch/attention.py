"""Attention and dropout in torch: without dropout, no scores are written."""

from kerasmem.memory.estimate.analytic import primitives as p
from kerasmem.memory.estimate.analytic.layers.parts import (
    FLOAT,
    Heads,
    noise_shape,
    projected,
)
from kerasmem.memory.estimate.analytic.site import Site
from kerasmem.memory.estimate.analytic.tape import Tape
from kerasmem.memory.program import Tensor


def attended(t: Tape, s: Site, xs: list[Tensor]) -> Tensor:
    """MultiHeadAttention and GroupedQueryAttention."""
    heads = Heads.of(t, s, xs)
    mixed = _with_scores(t, heads) if heads.dropout else _without_scores(t, heads)
    return projected(t, s, s.layer._output_dense, mixed, s.shape)


def operated(t: Tape, s: Site, xs: list[Tensor]) -> Tensor:
    """`keras.ops.dot_product_attention`."""
    return _without_scores(t, Heads.of_operation(s, xs))


def _without_scores(t: Tape, heads: Heads) -> Tensor:
    """Attention in one kernel, which keeps its operands and its result."""
    operands = [heads.query, heads.key, heads.value]
    if heads.query.width >= FLOAT:
        # The flash kernel wants half precision; for the other Keras makes copies.
        operands = [p.copied(t, x, x.shape, "contiguous") for x in operands]
    y = t.new(heads.mixed, heads.query.width)
    sums = t.new(heads.scores[:-1], FLOAT, differentiable=False)
    t.op("attention", operands, y, sums)

    def pullback(dy: Tensor) -> list[Tensor | None]:
        made = [t.new(x.shape, x.width) for x in operands]
        # The gradient of the query is summed up in float32.
        space = operands[0].nbytes // operands[0].width * FLOAT
        reads = (dy, *operands, y, sums)
        t.op("attention gradient", reads, *made, workspace=space)
        return list(made)

    t.pull(operands, y, pullback)
    return y


def _with_scores(t: Tape, heads: Heads) -> Tensor:
    query = p.scaled(t, heads.query)
    scores = p.product(t, "scores", query, heads.key, heads.scores)
    weights = dropout(t, p.of_output(t, "softmax", scores), heads.scores)
    return p.product(t, "mix", weights, heads.value, heads.mixed)


def dropped(t: Tape, s: Site, xs: list[Tensor]) -> Tensor:
    """Dropout of all kinds."""
    if not t.training or not s.layer.rate:
        return xs[0]
    return dropout(t, xs[0], noise_shape(s.layer, xs[0]))


def dropout(t: Tape, x: Tensor, shape: tuple[int, ...]) -> Tensor:
    """Return `x` with entries dropped; a mask of one byte an entry is kept."""
    if not t.training:
        return x
    mask = t.new(shape, 1, differentiable=False)
    t.op("random", (x,), mask)
    return p.pointwise(t, "dropout", x, mask, needs=((mask,), None))
