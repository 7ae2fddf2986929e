"""A weight of three axes is a kernel where its layer multiplies with it."""

import keras
import numpy as np
import pytest

from kerasmem.graph.kernels import is_kernel, reduced_axes
from kerasmem.graph.layers import weights
from tests.models import L, chain

ops = keras.ops


class Own(L.Layer):
    """A layer with one weight, and what it does with it."""

    def __init__(self, shape, use, name="w"):
        super().__init__()
        self.shape, self.use, self.weight_name = shape, use, name

    def build(self, _):
        self.w = self.add_weight(self.shape, name=self.weight_name)

    def call(self, x):
        return self.use(x, self.w)


def loop(x, w):
    return sum(ops.matmul(x, w[expert]) for expert in range(w.shape[0]))


def chosen(x, w):
    return ops.einsum("btd,btdo->bto", x, ops.take(w, ops.argmax(x, -1) % 4, axis=0))


def turned(x, w):
    w = ops.cast(ops.transpose(w, (0, 2, 1)), "float32")
    return ops.sum(ops.matmul(x[:, None], w), 1)


def halves(x, w):
    gate, up = ops.split(w, 2, axis=-1)
    return ops.einsum("btd,edo->bto", x, gate) * ops.einsum("btd,edo->bto", x, up)


def filtered(x, w):
    return ops.conv(x, w, padding="same")


def both(x, w):  # (6, 6, 6): no axis is only that of inputs
    return ops.einsum("btd,edo->bto", x, w) + ops.einsum("btd,eod->bto", x, w)


BANKS = {
    "einsum": ((4, 6, 8), lambda x, w: ops.einsum("btd,edo->beto", x, w), (1,)),
    "outputs_first": ((4, 8, 6), lambda x, w: ops.einsum("btd,eod->bto", x, w), (2,)),
    "experts_last": ((6, 8, 4), lambda x, w: ops.einsum("btd,doe->bto", x, w), (0,)),
    "operator": ((4, 6, 8), lambda x, w: x[:, None] @ w, (1,)),
    "loop": ((4, 6, 8), loop, (1,)),
    "chosen": ((4, 6, 8), chosen, (1,)),
    "turned": ((4, 8, 6), turned, (2,)),
    "halves": ((4, 6, 8), halves, (1,)),
    "heads": ((6, 2, 3), lambda x, w: ops.einsum("btd,dhk->bthk", x, w), (0,)),
    "two_axes": (
        (2, 3, 8),
        lambda x, w: ops.einsum("btij,ijo->bto", pairs(x), w),
        (0, 1),
    ),
}


def pairs(x):
    return ops.reshape(x, (-1, 5, 2, 3))


OTHERS = {
    "positions": ((1, 5, 6), lambda x, w: x + w),
    "looked_up_positions": ((3, 5, 6), lambda x, w: x + ops.take(w, 1, axis=0)),
    "scores": ((2, 5, 6), lambda x, w: ops.softmax(x[:, None] + w)),
    "gate": ((1, 1, 6), lambda x, w: x * ops.sigmoid(w)),
    "filter": ((3, 6, 8), filtered),
    "pooled": ((4, 5, 6), lambda x, w: x + ops.einsum("eto->to", w)),
    "two_ways": ((6, 6, 6), both),
}


def weight_of(shape, use, name="w"):
    (weight,) = weights(chain((5, 6), Own(shape, use, name)))
    return weight


@pytest.mark.parametrize("case", BANKS)
def test_what_products_sum_over_says_where_the_channels_of_a_kernel_lie(case):
    *made, axes = BANKS[case]
    weight = weight_of(*made)
    assert is_kernel(weight)
    assert reduced_axes(weight) == axes


@pytest.mark.parametrize("case", OTHERS)
def test_what_is_added_looked_up_or_slid_over_the_input_is_no_kernel(case):
    assert not is_kernel(weight_of(*OTHERS[case]))


def test_a_layer_that_takes_no_symbols_is_not_read():
    (weight,) = weights(chain((5, 6), layer := Own((4, 6, 8), lambda x, w: x)))
    layer.use = lambda x, w: x + np.asarray(w).sum()
    assert not is_kernel(weight)


def test_a_name_that_says_what_a_weight_is_counts():
    shape, multiply, axes = BANKS["einsum"]
    assert not is_kernel(weight_of(shape, multiply, "relative_embedding"))
    assert not is_kernel(weight_of(shape, multiply, "pair_bias"))
    assert reduced_axes(weight_of(shape, multiply, "kernel")) == axes
    # As before: all but the last, where nothing is known but the name.
    filters = weight_of((3, 6, 8), filtered, "kernel")
    assert is_kernel(filters)
    assert reduced_axes(filters) == (0, 1)


def test_layers_within_layers_and_models_are_read():
    class Around(L.Layer):
        def __init__(self):
            super().__init__()
            self.own = Own(*BANKS["einsum"][:2])
            self.bank = Own(*BANKS["outputs_first"][:2])

        def build(self, shape):
            self.own.build(shape)
            self.bank.build(shape)
            self.w = self.add_weight((6, 2, 3), name="w")

        def call(self, x):
            heads = ops.einsum("btd,dhk->bthk", x, self.w)
            return self.bank(x), self.own(x), heads

    class Whole(keras.Model):
        def __init__(self):
            super().__init__()
            self.around = Around()

        def call(self, x):
            return self.around(x)

    expected = {(4, 6, 8): (1,), (4, 8, 6): (2,), (6, 2, 3): (0,)}
    nested = chain((None, 6), Whole())
    alone = Whole()
    alone(np.zeros((2, 5, 6), "float32"))
    for model in (nested, alone):
        found = {tuple(w.variable.shape): reduced_axes(w) for w in weights(model)}
        assert found == expected


def test_a_layer_that_was_read_is_as_before():
    class Noted(Own):
        def call(self, x):
            self.add_loss(ops.mean(ops.square(self.w)))
            self.calls = getattr(self, "calls", 0) + 1
            self.last = super().call(x)
            return self.last

        def get_config(self):
            return {"name": self.name}

    layer = Noted(*BANKS["einsum"][:2])
    model = chain((5, 6), layer)
    before, nodes = dict(vars(layer)), len(layer._inbound_nodes)
    (weight,) = weights(model)
    assert reduced_axes(weight) == (1,)
    assert {name: id(value) for name, value in vars(layer).items()} == {
        name: id(value) for name, value in before.items()
    }
    assert len(layer._inbound_nodes) == nodes
    x = np.ones((2, 5, 6), "float32")
    model(x)
    assert len(model.losses) == 1
