"""Attention and dropout in TensorFlow: the scores of every head are written out."""

from kerasmem.memory.estimate.analytic import primitives as p
from kerasmem.memory.estimate.analytic.layers.parts import (
    FLOAT,
    Heads,
    noise_shape,
    projected,
)
from kerasmem.memory.estimate.analytic.layers.tensorflow.activations import softmax
from kerasmem.memory.estimate.analytic.site import Site
from kerasmem.memory.estimate.analytic.tape import Tape
from kerasmem.memory.program import Tensor


def attended(t: Tape, s: Site, xs: list[Tensor]) -> Tensor:
    """MultiHeadAttention and GroupedQueryAttention."""
    heads = Heads.of(t, s, xs)
    return projected(t, s, s.layer._output_dense, _mixed(t, s, heads), s.shape)


def operated(t: Tape, s: Site, xs: list[Tensor]) -> Tensor:
    """`keras.ops.dot_product_attention`."""
    return _mixed(t, s, Heads.of_operation(s, xs))


def _mixed(t: Tape, s: Site, heads: Heads) -> Tensor:
    q, k, v = heads.query, heads.key, heads.value
    turned = q.nbytes + k.nbytes
    if heads.dropout:
        # Keras writes it out itself, and multiplies the query by the scale.
        scores = p.product(t, "scores", p.scaled(t, q), k, heads.scores, turned)
        weights = dropout(t, softmax(t, scores), heads.scores)
        return p.product(t, "mix", weights, v, heads.mixed, workspace=2 * v.nbytes)
    scores = p.product(t, "scores", q, k, heads.scores, workspace=turned)
    scores = p.converted(t, scores, max(FLOAT, s.width))
    scores = p.pointwise(t, "scale", scores, needs=(None,))
    weights = softmax(t, scores, scale_follows=True)
    weights = p.converted(t, weights, s.width)
    return p.product(t, "mix", weights, v, heads.mixed, workspace=2 * v.nbytes)


def dropped(t: Tape, s: Site, xs: list[Tensor]) -> Tensor:
    """Dropout of all kinds."""
    if not t.training or not s.layer.rate:
        return xs[0]
    return dropout(t, xs[0], noise_shape(s.layer, xs[0]))


def dropout(t: Tape, x: Tensor, shape: tuple[int, ...]) -> Tensor:
    """Return `x` with entries dropped; a mask of one byte an entry is kept."""
    if not t.training:
        return x
    random = t.new(shape, FLOAT, differentiable=False)
    t.op("random", (x,), random)
    mask = t.new(shape, 1, differentiable=False)
    t.op("compare", (random,), mask)
    return p.pointwise(t, "dropout", x, mask, needs=((mask,), None))
