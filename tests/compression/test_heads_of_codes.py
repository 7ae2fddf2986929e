"""Heads of language models multiply with codes, some words at a time."""

import itertools
from functools import partial

import keras
import numpy as np
import pytest

import kerasmem as km
from kerasmem.compression.quantize import apply
from kerasmem.compression.quantize.owners import quantized_variables
from kerasmem.compression.quantize.variable import QuantizedVariable
from kerasmem.extras.chunked.chunks import VocabularyTable, crossentropy
from kerasmem.graph.values import to_numpy
from tests.compression.aware.gradient import gradient_of
from tests.models import L

WORDS, WIDTH, LENGTH = 157, 12, 9
RANDOM = np.random.default_rng(0)
TOKENS = RANDOM.integers(1, WORDS, (6, LENGTH)).astype("int32")
LABELS = RANDOM.integers(0, WORDS, (6, LENGTH)).astype("int32")
GROUPS = {"granularity": "group", "group_size": 4}
CODINGS = {
    "int8": {"scheme": "int8"},
    "int4": {"scheme": "int4"},
    "groups": {"scheme": "int4", **GROUPS},
    "nf4": {"scheme": "nf4", **GROUPS},
    "zero points": {"scheme": "int4", "symmetric": False},
    "one scale": {"scheme": "int8", "granularity": "tensor"},
    "float16": {"scheme": "float16"},
}
ALL = [("tied", coding) for coding in CODINGS]
"""Every coding once, and every head with one that is scaled afterwards or not."""
HEADS = ("tied", "untied", "capped", "chunked", "chunked untied", "chunked own")


def coded(head, coding, blocks=5):
    """Return a net in fewer bits, with LoRA before its head, and its float form."""
    keras.utils.set_random_seed(1)
    tokens = keras.Input((None,), dtype="int32")
    cap = 0.3 if head == "capped" else None
    table = L.ReversibleEmbedding(
        *(WORDS, WIDTH),
        tie_weights="untied" not in head,
        embeddings_initializer=keras.initializers.RandomUniform(-1, 1),
        logit_soft_cap=cap,
        name="words",
    )
    x = L.Dense(WIDTH, activation="tanh", name="inside")(table(tokens))
    if head.startswith("chunked"):
        own = WORDS if head.endswith("own") else table
        y = km.layers.ChunkedVocabulary(own)(x)
    else:
        y = table(x, reverse=True)
    model = keras.Model(tokens, y)
    small = km.compress(model, km.Quantize(**CODINGS[coding]), verbose=0).model
    for variable in quantized_variables(small):
        variable.block_count = blocks
    exact = km.dequantize(small)
    for layer in exact.layers:
        layer.trainable = layer.name == "inside"
    for each in (small, exact):
        each.get_layer("inside").enable_lora(2)
        up = each.get_layer("inside").lora_kernel_b
        up.assign(np.random.default_rng(0).normal(size=up.shape))
    down = to_numpy(exact.get_layer("inside").lora_kernel_a).copy()
    small.get_layer("inside").lora_kernel_a.assign(down)
    return small, exact


def own_lora(model):
    layer = model.get_layer("inside")
    return [layer.lora_kernel_a, layer.lora_kernel_b]


@pytest.mark.parametrize(
    ("head", "coding"), [*ALL, *itertools.product(HEADS[1:], ("int8", "groups"))]
)
def test_logits_are_those_of_the_floats(head, coding):
    small, exact = coded(head, coding)
    expected = exact.predict(TOKENS, verbose=0)
    found = small.predict(TOKENS, verbose=0)
    np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-6)
    assert np.ptp(expected) > 0.1


@pytest.mark.slow
@pytest.mark.parametrize(
    ("head", "coding"), [*zip(HEADS, itertools.cycle(CODINGS)), ("chunked", "groups")]
)
def test_what_is_before_the_head_is_trained_as_before_floats(head, coding):
    small, exact = coded(head, coding)
    loss = km.layers.ChunkedCrossentropy()
    losses = []
    for model in (small, exact):
        model.compile(keras.optimizers.SGD(1.0), loss)
        begin = [to_numpy(x) for x in own_lora(model)]
        logs = model.fit(TOKENS, LABELS, batch_size=3, shuffle=False, verbose=0)
        losses.append(logs.history["loss"][0])
    assert losses[0] == pytest.approx(losses[1], rel=1e-5)
    for new, old, before in zip(own_lora(small), own_lora(exact), begin, strict=True):
        moved = np.abs(to_numpy(old) - before).max()
        assert moved > 1e-4
        np.testing.assert_allclose(to_numpy(new), to_numpy(old), atol=2e-4 * moved)


def weighted(layer, by_logits, states):
    logits = layer(states, reverse=True)
    return keras.ops.vdot(keras.ops.ravel(logits), by_logits.ravel())


@pytest.mark.parametrize("head", ["tied", "untied", "capped"])
def test_states_have_their_slopes(head):
    small, exact = coded(head, "groups")
    states = RANDOM.normal(size=(2, 3, WIDTH)).astype("float32")
    by_logits = RANDOM.normal(size=(2, 3, WORDS)).astype("float32")
    found, expected = (
        gradient_of(partial(weighted, model.get_layer("words"), by_logits), states)
        for model in (small, exact)
    )
    np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-5)


@pytest.mark.slow
@pytest.mark.parametrize("head", HEADS)
def test_many_logits_are_made_at_once_and_few_in_parts(head, monkeypatch):
    small, exact = coded(head, "groups")
    axes = []
    decode = QuantizedVariable.decoded

    def decoded(self, found, rows):
        if WORDS in self.shape:
            axes.append(self.shape)
        return decode(self, found, rows)

    monkeypatch.setattr(QuantizedVariable, "decoded", decoded)
    several = {}
    for rows in (1, 2):
        axes.clear()
        # As many states as each has entries, or more: twice as many.
        logits = to_numpy(small(TOKENS[:1, : WIDTH // 2 * rows], training=False))
        several[rows] = len(axes)
        assert logits.shape[-1] == WORDS
    assert several[1] == several[2] > 2
    axes.clear()
    found = to_numpy(small(TOKENS, training=False))
    assert len(axes) <= 2  # rows that are looked up, and the head
    np.testing.assert_allclose(found, to_numpy(exact(TOKENS)), rtol=1e-5, atol=1e-6)


def test_a_large_table_is_not_float_at_once():
    words = 16 * 1024
    inputs = keras.Input((None,), dtype="int32")
    table = L.ReversibleEmbedding(words, 32)
    model = keras.Model(inputs, table(table(inputs), reverse=True))
    small = km.compress(model, km.Quantize("int4"), verbose=0).model
    assert [v.block_count for v in quantized_variables(small)] == [16]
    copy = keras.saving.deserialize_keras_object(
        keras.saving.serialize_keras_object(small)
    )
    assert [v.block_count for v in quantized_variables(copy)] == [16]


@pytest.mark.parametrize("scheme", ["int8", "groups"])
@pytest.mark.parametrize("head", ["untied", "chunked untied"])
def test_a_head_may_have_a_scale_for_each_input_as_it_had(head, scheme, monkeypatch):
    axes = apply.reduced_axes

    def before(weight):
        is_head = weight.variable.name == "reverse_embeddings"
        return (1,) if is_head else axes(weight)

    monkeypatch.setattr(apply, "reduced_axes", before)
    small, exact = coded(head, scheme)
    table = small.get_layer("words").reverse_embeddings
    assert table.coding.axes == (1,)
    np.testing.assert_allclose(
        small.predict(TOKENS, verbose=0),
        exact.predict(TOKENS, verbose=0),
        rtol=1e-5,
        atol=1e-6,
    )


def test_the_head_alone_may_have_codes():
    inputs = keras.Input((None,), dtype="int32")
    table = L.ReversibleEmbedding(WORDS, WIDTH, tie_weights=False)
    model = keras.Model(inputs, table(table(inputs), reverse=True))
    step = km.Quantize("int8", exclude=("/embeddings$",))
    small = km.compress(model, step, verbose=0).model
    assert [v.name for v in quantized_variables(small)] == ["reverse_embeddings"]
    expected = km.dequantize(small).predict(TOKENS, verbose=0)
    found = small.predict(TOKENS, verbose=0)
    np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-6)


def test_gradients_of_states_are_summed_up_in_float32():
    keras.utils.set_random_seed(1)
    inputs = keras.Input((None,), dtype="int32")
    table = L.ReversibleEmbedding(2000, 32, dtype="mixed_bfloat16")
    model = keras.Model(inputs, table(table(inputs), reverse=True))
    small = km.compress(model, km.Quantize("int8"), verbose=0).model
    own = small.layers[-1].embeddings
    weights = to_numpy(own.plain())
    states = RANDOM.normal(size=(64, 32)).astype("float32")
    powers = np.exp(states @ weights.T)
    by_logits = powers / powers.sum(-1, keepdims=True)
    labels = np.arange(64, dtype="int32")
    by_logits[labels, labels] -= 1
    ones = np.ones(64, "float32")

    def total(x):
        head = VocabularyTable(own, False, "bfloat16", trained=False)
        return crossentropy(keras.ops.cast(x, "bfloat16"), head, labels, ones, ones, 0)[
            0
        ]

    exact = by_logits @ weights
    error = np.linalg.norm(gradient_of(total, states) - exact)
    assert error < 0.01 * np.linalg.norm(exact)


def test_half_precision_logits_keep_their_type():
    keras.utils.set_random_seed(1)
    inputs = keras.Input((None,), dtype="int32")
    table = L.ReversibleEmbedding(WORDS, WIDTH, dtype="mixed_bfloat16")
    model = keras.Model(inputs, table(table(inputs), reverse=True))
    small = km.compress(model, km.Quantize("int8"), verbose=0).model
    dtypes = {keras.backend.standardize_dtype(m(TOKENS).dtype) for m in (model, small)}
    assert dtypes == {"bfloat16"}
