"""What several layers are made of, on every backend."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from kerasmem.memory.estimate.analytic import primitives as p
from kerasmem.memory.estimate.analytic.site import Site
from kerasmem.memory.estimate.analytic.tape import Tape
from kerasmem.memory.program import Shape, Tensor

FLOAT = 4
"""Bytes of a float32, in which normalization and softmax are computed at least."""


def projected(t: Tape, s: Site, layer: Any, x: Tensor, shape: Shape) -> Tensor:
    """Return the product of `x` with the kernel of a dense layer, and its bias."""
    kernel = s.parameter(layer.kernel)
    y = p.product(t, "matmul", x, kernel, shape, t.product_scratch)
    return y if layer.bias is None else p.add(t, y, s.parameter(layer.bias))


def kept_axes(x: Tensor, axes: Sequence[int]) -> Shape:
    """Return the shape of a reduction of `x` over all axes but `axes`."""
    kept = {axis % len(x.shape) for axis in axes}
    return tuple(n if i in kept else 1 for i, n in enumerate(x.shape))


def noise_shape(layer: Any, x: Tensor) -> Shape:
    """Return the shape of a dropout layer's random numbers."""
    name = type(layer).__name__
    if name.startswith("Spatial"):
        return kept_axes(x, [0, -1])
    given = getattr(layer, "noise_shape", None) or x.shape
    return tuple(n or m for n, m in zip(given, x.shape, strict=True))


def separable_middle(s: Site, pointwise: Tensor) -> Shape:
    """Return the shape between the two convolutions of a separable one."""
    channels = pointwise.shape[-2]
    if s.channels_first:
        return (s.shape[0], channels, *s.shape[2:])
    return (*s.shape[:-1], channels)


@dataclass(frozen=True)
class Heads:
    """The operands of attention with several heads, and the shapes of its results.

    Args:
        query: of shape (batch, length, heads, size).
        key: likewise.
        value: likewise.
        scores: shape of the scores, (batch, heads, query length, key length).
        mixed: shape of the result, (batch, length, heads, size).
        dropout: whether scores are dropped.
    """

    query: Tensor
    key: Tensor
    value: Tensor
    scores: Shape
    mixed: Shape
    dropout: bool

    @classmethod
    def of(cls, t: Tape, s: Site, xs: list[Tensor]) -> "Heads":
        """Record the three projections of an attention layer."""
        layer = s.layer
        given = dict(zip(s.names or ("query", "value", "key"), xs, strict=False))
        query, value = given["query"], given.get("value", given["query"])
        key = given.get("key", value)
        number = getattr(layer, "num_heads", None) or layer.num_query_heads
        fewer = getattr(layer, "num_key_value_heads", number)
        size = getattr(layer, "key_dim", None) or layer.head_dim
        wide = getattr(layer, "value_dim", size)
        q = projected(
            t, s, layer._query_dense, query, (*query.shape[:-1], number, size)
        )
        k = projected(t, s, layer._key_dense, key, (*key.shape[:-1], fewer, size))
        v = projected(t, s, layer._value_dense, value, (*value.shape[:-1], fewer, wide))
        length, others_length = query.shape[-2], key.shape[-2]
        batch = query.shape[0]
        return cls(
            *(q, k, v),
            scores=(batch, number, length, others_length),
            mixed=(*query.shape[:-1], number, wide),
            dropout=bool(getattr(layer, "dropout", 0)),
        )

    @classmethod
    def of_operation(cls, s: Site, xs: list[Tensor]) -> "Heads":
        """Return the operands of `keras.ops.dot_product_attention`."""
        given = dict(zip(s.names, xs, strict=True))
        query, key = given["query"], given["key"]
        batch, length, number, _ = query.shape
        return cls(
            *(query, key, given["value"]),
            scores=(batch, number, length, key.shape[1]),
            mixed=s.shape,
            dropout=False,
        )
