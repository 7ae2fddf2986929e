"""A model and a copy of it, part by part: what layers are given, and how often."""

from collections import Counter

import keras
import numpy as np
import pytest

import kerasmem as km
from kerasmem.compression.quantize.on_data import passes
from kerasmem.compression.quantize.on_data.passes import Passes, batch_within
from kerasmem.graph.clone import clone
from kerasmem.graph.layers import sublayers
from kerasmem.graph.observe import observe
from kerasmem.graph.values import to_numpy
from tests.models import L

X = np.random.default_rng(0).normal(size=(40, 6, 8)).astype("float32")


def nested():
    """Return a model with a model and attention in it, a sum and a shared layer."""
    keras.utils.set_random_seed(0)
    inner_inputs = keras.Input((6, 8))
    inner = keras.Model(inner_inputs, L.Dense(8, "relu")(inner_inputs), name="inner")
    inputs, shared = keras.Input((6, 8)), L.Dense(8, name="shared")
    x = L.Add()([inner(inputs), inputs])
    x = shared(L.MultiHeadAttention(2, 4, name="attention")(x, x))
    x = shared(L.Activation("tanh")(L.Dense(8, name="between")(x)))
    return keras.Model(inputs, L.Dense(3, name="last")(x))


class Subclassed(keras.Model):
    def __init__(self):
        super().__init__()
        self.one, self.other = L.Dense(5, "relu"), L.Dense(4)

    def call(self, x):
        return self.other(self.one(x))


def subclassed():
    keras.utils.set_random_seed(1)
    model = Subclassed()
    model(X[:1])
    copy = Subclassed()
    copy(X[:1])
    copy.set_weights(model.get_weights())
    return model, copy


def pairs_of(models):
    kinds = (L.Dense, L.EinsumDense)
    layers = [[x for x in sublayers(m) if isinstance(x, kinds)] for m in models]
    return list(zip(*layers, strict=True))


def inputs_of(model, layers):
    """Return what the layers of a model are given, call by call."""
    found = {id(layer): [] for layer in layers}
    observe(
        model, [X], layers, inputs=lambda c: found[id(c.layer)].append(to_numpy(c.x))
    )
    return [found[id(layer)] for layer in layers]


def seen_by(runs):
    """Return each turn, what its layers were given, and a list that fills with it."""
    given = {}

    def see(number, behind, before):
        own = given.setdefault(number, ([], []))
        for values, x in zip(own, (behind, before), strict=True):
            values.append(to_numpy(x))

    for numbers in runs.turns(see):
        yield numbers, {n: given.pop(n) for n in numbers}
        assert not given


def whole(batches, calls):
    """Return what came in batches, call by call: all samples of each."""
    return [np.concatenate(batches[n::calls]) for n in range(calls)]


@pytest.mark.parametrize("held", [1 << 28, 0])
def test_layers_are_given_what_changed_ones_before_them_make(held, monkeypatch):
    monkeypatch.setattr(passes, "_HELD_BYTES", held)
    model = nested()
    models = model, clone(model)
    pairs = pairs_of(models)
    exact = inputs_of(model, [before for before, _ in pairs])
    order = []
    for numbers, given in seen_by(Passes(models, pairs, X)):
        order += numbers
        wanted = inputs_of(models[1], [after for _, after in pairs])
        for number in numbers:
            calls = len(exact[number])
            for found, own in zip(given[number], (exact, wanted), strict=True):
                for x, y in zip(whole(found, calls), own[number], strict=True):
                    np.testing.assert_allclose(x, y, atol=1e-5)
        for number in numbers:
            kernel = pairs[number][1].kernel
            kernel.assign(0.5 * to_numpy(kernel))
    names = [pairs[n][0].name for n in order]
    assert names[-3:] == ["between", "shared", "last"]
    assert names[0].startswith("dense")
    assert sorted(order) == list(range(len(pairs)))


def test_one_model_alone_is_seen_as_it_is_then():
    model = nested()
    pairs = [(layer, layer) for layer, _ in pairs_of((model, model))]
    for numbers, given in seen_by(Passes((model, model), pairs, X)):
        wanted = inputs_of(model, [layer for layer, _ in pairs])
        for number in numbers:
            calls = len(wanted[number])
            for found in given[number]:
                for x, y in zip(whole(found, calls), wanted[number], strict=True):
                    np.testing.assert_allclose(x, y, atol=1e-5)
        for number in numbers:
            kernel = pairs[number][1].kernel
            kernel.assign(0.5 * to_numpy(kernel))


def test_a_model_without_a_graph_is_run_from_its_beginning():
    models = subclassed()
    pairs = pairs_of(models)
    for numbers, given in seen_by(Passes(models, pairs, X)):
        wanted = inputs_of(models[1], [after for _, after in pairs])
        for number in numbers:
            (x,) = whole(given[number][1], 1)
            np.testing.assert_allclose(x, wanted[number][0], atol=1e-5)
        for number in numbers:
            pairs[number][1].kernel.assign(np.zeros(pairs[number][1].kernel.shape))


def test_no_part_is_run_more_than_three_times(monkeypatch):
    keras.utils.set_random_seed(2)
    layers = [L.Dense(8, name=f"dense_{n}") for n in range(20)]
    model = keras.Sequential([keras.Input((6, 8)), *layers])
    models, counts = (model, clone(model)), Counter()
    pairs = pairs_of(models)
    usual = L.Dense.call

    def counted(self, x, training=None):
        counts[self.name] += 1
        return usual(self, x, training=training)

    monkeypatch.setattr(L.Dense, "call", counted)
    assert len(list(Passes(models, pairs, X).turns(lambda *_: None))) == 20
    batches = 3  # of 16 samples
    # Once to see, once in the model, and twice in the copy, of old and new weights.
    assert max(counts.values()) <= 1 + 3 * batches
    monkeypatch.setattr(passes, "_HELD_BYTES", 0)
    assert len(list(Passes(models, pairs, X).turns(lambda *_: None))) <= 8


def test_layers_that_are_not_called_are_in_no_turn():
    keras.utils.set_random_seed(3)
    inputs = keras.Input((6, 8))
    model = keras.Model(inputs, L.Dense(4)(inputs))
    models, apart = (model, clone(model)), L.Dense(2)
    apart.build((None, 8))
    pairs = [*pairs_of(models), (apart, apart)]
    assert list(Passes(models, pairs, X).turns(lambda *_: None)) == [(0,)]
    assert list(Passes(models, [], X).turns(lambda *_: None)) == []


@pytest.mark.one_backend
def test_batches_of_a_stateful_model_have_the_size_of_its_states():
    inputs = keras.Input(batch_shape=(8, 6, 4))
    model = keras.Model(inputs, L.Dense(3)(L.LSTM(5, stateful=True)(inputs)))
    x = np.random.default_rng(0).normal(size=(16, 6, 4)).astype("float32")
    assert batch_within(model, (x,), 32) == 8
    result = km.compress(model, km.Quantize("int8"), data=x)
    noise = [c.output_sqnr_db for c in result.changes if c.output_sqnr_db is not None]
    assert min(noise) > 25
