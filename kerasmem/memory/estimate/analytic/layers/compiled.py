"""What XLA computes for a layer, before it merges operations."""

from kerasmem.memory.estimate.analytic import primitives as p
from kerasmem.memory.estimate.analytic.layers.common import looked_up, taken
from kerasmem.memory.estimate.analytic.layers.names import activation_name
from kerasmem.memory.estimate.analytic.layers.parts import FLOAT, Heads, projected
from kerasmem.memory.estimate.analytic.layers.tensorflow import TENSORFLOW
from kerasmem.memory.estimate.analytic.layers.tensorflow.activations import activation
from kerasmem.memory.estimate.analytic.layers.tensorflow.attention import dropout
from kerasmem.memory.estimate.analytic.site import Handler, Site
from kerasmem.memory.estimate.analytic.tape import Tape
from kerasmem.memory.program import Tensor


def attended(t: Tape, s: Site, xs: list[Tensor]) -> Tensor:
    """MultiHeadAttention: the weights are written, the scores merged into them."""
    mixed = _mixed(t, s, Heads.of(t, s, xs))
    return projected(t, s, s.layer._output_dense, mixed, s.shape)


def operated(t: Tape, s: Site, xs: list[Tensor]) -> Tensor:
    """`keras.ops.dot_product_attention`."""
    return _mixed(t, s, Heads.of_operation(s, xs))


def _mixed(t: Tape, s: Site, heads: Heads) -> Tensor:
    scores = p.product(t, "scores", heads.query, heads.key, heads.scores)
    scores = p.pointwise(t, "scale", p.converted(t, scores, FLOAT), needs=(None,))
    weights = p.of_output(t, "softmax", scores)
    if heads.dropout:
        weights = dropout(t, weights, weights.shape)
    weights = p.converted(t, weights, s.width)
    return p.product(t, "mix", weights, heads.value, heads.mixed)


def _activation(t: Tape, s: Site, xs: list[Tensor]) -> Tensor:
    function = getattr(s.layer, "activation", s.layer)
    if "softmax" in activation_name(function):
        return p.of_output(t, "softmax", xs[0])
    return activation(t, s, xs)


COMPILED: dict[str, Handler] = {
    **TENSORFLOW,
    "MultiHeadAttention": attended,
    "GroupedQueryAttention": attended,
    "DotProductAttention": operated,
    "Activation": _activation,
    "Softmax": _activation,
    "Embedding": looked_up,
    "Take": taken,
}
