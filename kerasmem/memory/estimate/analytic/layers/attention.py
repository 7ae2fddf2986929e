"""Attention layers, and the copies of their scores on each backend."""

from typing import NamedTuple

from kerasmem.memory.estimate.analytic import primitives as p
from kerasmem.memory.estimate.analytic.layers.activations import softmax
from kerasmem.memory.estimate.analytic.layers.common import FLOAT, dropout, projection
from kerasmem.memory.estimate.analytic.tape import Site, Tape
from kerasmem.memory.program import ProgramTensor, Shape


class Heads(NamedTuple):
    """Operands of multi-head attention, and the shapes of its results.

    Queries, keys, values and the result have shape (batch, length, heads, size). Scores
    have shape (batch, heads, query length, key length).
    """

    query: ProgramTensor
    key: ProgramTensor
    value: ProgramTensor
    scores: Shape
    mixed: Shape
    dropout: bool = False


def attention_layer(t: Tape, s: Site, xs: list[ProgramTensor]) -> ProgramTensor:
    """MultiHeadAttention and GroupedQueryAttention."""
    layer = s.layer
    arguments = dict(zip(s.names or ("query", "value", "key"), xs, strict=False))
    query, value = arguments["query"], arguments.get("value", arguments["query"])
    key = arguments.get("key", value)
    number = getattr(layer, "num_heads", None) or layer.num_query_heads
    fewer = getattr(layer, "num_key_value_heads", number)
    size = getattr(layer, "key_dim", None) or layer.head_dim
    wide = getattr(layer, "value_dim", size)
    sides = (
        (layer._query_dense, query, number, size),
        (layer._key_dense, key, fewer, size),
        (layer._value_dense, value, fewer, wide),
    )
    heads = Heads(
        *(projection(t, s, d, x, (*x.shape[:-1], n, m)) for d, x, n, m in sides),
        scores=(query.shape[0], number, query.shape[-2], key.shape[-2]),
        mixed=(*query.shape[:-1], number, wide),
        dropout=bool(getattr(layer, "dropout", 0)),
    )
    mixture = _MIXED[t.how.kernels](t, s, heads)
    return projection(t, s, layer._output_dense, mixture, s.shape)


def attention_operation(t: Tape, s: Site, xs: list[ProgramTensor]) -> ProgramTensor:
    """`keras.ops.dot_product_attention`."""
    arguments = dict(zip(s.names, xs, strict=True))
    query, key = arguments["query"], arguments["key"]
    batch, length, number, _ = query.shape
    scores = (batch, number, length, key.shape[1])
    heads = Heads(query, key, arguments["value"], scores, s.shape)
    return _MIXED[t.how.kernels](t, s, heads)


def _in_tensorflow(t: Tape, s: Site, heads: Heads) -> ProgramTensor:
    q, k, v = heads.query, heads.key, heads.value
    copies, space = q.nbytes + k.nbytes, 2 * v.nbytes
    if heads.dropout:
        # With dropout, Keras composes the attention and scales the query.
        scores = p.product(t, "scores", p.scale(t, q), k, heads.scores, copies)
        weights = dropout(t, softmax(t, scores), heads.scores)
        return p.product(t, "mix", weights, v, heads.mixed, space)
    scores = p.product(t, "scores", q, k, heads.scores, copies)
    scores = p.cast(t, scores, max(FLOAT, s.width))
    scores = p.pointwise(t, "scale", scores, needs=(None,))
    weights = p.cast(t, softmax(t, scores, scale_follows=True), s.width)
    return p.product(t, "mix", weights, v, heads.mixed, space)


def _in_xla(t: Tape, s: Site, heads: Heads) -> ProgramTensor:
    scores = p.product(t, "scores", heads.query, heads.key, heads.scores)
    scores = p.pointwise(t, "scale", p.cast(t, scores, FLOAT), needs=(None,))
    weights = p.softmax(t, scores)
    if heads.dropout:
        weights = dropout(t, weights, weights.shape)
    weights = p.cast(t, weights, s.width)
    return p.product(t, "mix", weights, heads.value, heads.mixed)


def _in_torch(t: Tape, _s: Site, heads: Heads) -> ProgramTensor:
    if heads.dropout:
        query = p.scale(t, heads.query)
        scores = p.product(t, "scores", query, heads.key, heads.scores)
        weights = dropout(t, p.of_output(t, "softmax", scores), heads.scores)
        return p.product(t, "mix", weights, heads.value, heads.mixed)
    operands = [heads.query, heads.key, heads.value]
    if heads.query.width >= FLOAT:
        # The flash kernel needs half precision. For other dtypes, Keras makes copies.
        operands = [p.copy(t, x, x.shape, "contiguous") for x in operands]
    y = t.new(heads.mixed, heads.query.width)
    sums = t.new(heads.scores[:-1], FLOAT)
    # The gradient of the query is accumulated in float32.
    space = operands[0].nbytes // operands[0].width * FLOAT
    keeps = (*operands, y, sums)
    return p.single(t, "attention", operands, y, sums, keeps=keeps, space=space)


_MIXED = {"tensorflow": _in_tensorflow, "xla": _in_xla, "torch": _in_torch}
