"""Floating-point operations of layers, by arithmetic."""

import pytest

from kerasmem.graph.channels.cost import flops
from tests.models import L, chain

pytestmark = pytest.mark.one_backend
WINDOW = 3 * 3 * 3 * 5


@pytest.mark.parametrize(
    ("shape", "layer", "products"),
    [
        ((7,), L.Dense(4), 7 * 4),
        ((5, 7), L.EinsumDense("abc,cd->abd", (5, 4)), 5 * 7 * 4),
        ((8, 9, 3), L.Conv2D(5, 3, strides=2), 3 * 4 * WINDOW),
        ((3, 8, 9), L.Conv2D(5, 3, data_format="channels_first"), 6 * 7 * WINDOW),
        ((8, 9, 3), L.Conv2DTranspose(5, 3, strides=2), 8 * 9 * WINDOW),
        ((9, 3), L.DepthwiseConv1D(3), 7 * 3 * 3),
        ((5, 6), L.LSTM(4), 5 * (6 + 4) * 4 * 4),
    ],
    ids=[
        "dense",
        "einsum",
        "conv",
        "channels_first",
        "transposed",
        "depthwise",
        "lstm",
    ],
)
def test_an_operation_is_counted_at_each_place_of_a_kernel(shape, layer, products):
    assert flops(chain(shape, layer)) == 2 * products
