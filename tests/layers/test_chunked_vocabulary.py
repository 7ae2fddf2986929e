"""A head whose logits are never whole trains and answers as one whose are."""

import keras
import numpy as np
import pytest

import kerasmem as km
from kerasmem.errors import ConfigError
from kerasmem.extras.chunked import chunks
from kerasmem.graph.from_config import made_of_config
from kerasmem.graph.layers import sublayers
from kerasmem.graph.values import to_numpy
from kerasmem.layers import ChunkedCrossentropy, ChunkedVocabulary
from tests.compression.aware.gradient import gradient_of
from tests.models import L

WORDS, WIDTH, LENGTH = 157, 12, 21
RANDOM = np.random.default_rng(0)
TOKENS = RANDOM.integers(1, WORDS, (10, LENGTH)).astype("int32")
LABELS = RANDOM.integers(0, WORDS, (10, LENGTH)).astype("int32")


def network(head, mask_zero=False, cap=None, dtype=None):
    """Return a net with a head of either kind: "tied", "untied" or "own"."""
    keras.utils.set_random_seed(1)
    tokens = keras.Input((None,), dtype="int32")
    kind = L.Embedding if head == "own" else L.ReversibleEmbedding
    more = {} if head == "own" else {"tie_weights": head == "tied"}
    more |= {"logit_soft_cap": cap} if cap and head != "own" else {}
    table = kind(WORDS, WIDTH, mask_zero=mask_zero, dtype=dtype, **more)
    x = L.Dense(WIDTH, activation="tanh", dtype=dtype)(table(tokens))
    return tokens, table, x


def pair(head, **more):
    """Return a net with a chunked head and one with a plain head, weights alike."""
    chunked, plain = None, None
    for is_chunked in (True, False):
        tokens, table, x = network(head, **more)
        dtype = more.get("dtype")
        if is_chunked:
            own = WORDS if head == "own" else table
            y = ChunkedVocabulary(own, dtype=dtype)(x)
        elif head == "own":
            y = L.Dense(WORDS, use_bias=False, dtype=dtype)(x)
        else:
            y = table(x, reverse=True)
        model = keras.Model(tokens, y)
        if is_chunked:
            chunked = model
        else:
            plain = model
    assert len(chunked.weights) == len(plain.weights)
    plain.set_weights(chunked.get_weights())
    return chunked, plain


CASES = {
    "tied": ("tied", {}, {}),
    "untied": ("untied", {}, {}),
    "own": ("own", {}, {}),
    "mask": ("own", {"mask_zero": True}, {}),
    "cap": ("tied", {"cap": 0.3}, {}),
    "ignored": ("own", {}, {"ignore_class": 3}),
}


# Keras compiles for torch by code that torch itself warns of.
JITS = [False] if keras.backend.backend() == "torch" else [False, True]


@pytest.mark.parametrize("jit", JITS)
@pytest.mark.parametrize("case", CASES)
def test_it_trains_as_a_plain_head_does(case, jit):
    head, made, settings = CASES[case]
    chunked, plain = pair(head, **made)
    x, y = TOKENS.copy(), LABELS.copy()
    if made.get("mask_zero"):
        x[:, -6:] = 0
    if settings:
        y[::2, :5] = 3
    weight = np.linspace(0.5, 2, y.size, dtype="float32").reshape(y.shape)
    usual = keras.losses.SparseCategoricalCrossentropy(from_logits=True, **settings)
    found = []
    for model, loss in ((chunked, ChunkedCrossentropy(**settings)), (plain, usual)):
        model.compile(keras.optimizers.SGD(5.0), loss, jit_compile=jit)
        logs = model.fit(
            x, y, batch_size=5, epochs=2, sample_weight=weight, shuffle=False, verbose=0
        )
        told = model.evaluate(x, y, sample_weight=weight, verbose=0, return_dict=True)[
            "loss"
        ]
        found.append((logs.history["loss"], told, model.get_weights()))
    (losses, told, weights), (expected, other, same) = found
    np.testing.assert_allclose(losses, expected, rtol=1e-5)
    np.testing.assert_allclose(told, other, rtol=1e-5)
    before = [to_numpy(w) for w in pair(head, **made)[0].weights]
    for new, old, begin in zip(weights, same, before, strict=True):
        moved = np.abs(old - begin).max()
        np.testing.assert_allclose(new, old, atol=1e-4 * moved)
        assert moved > 1e-3


def test_labels_may_be_smoothed():
    chunked, plain = pair("tied")
    share = 0.1
    loss = ChunkedCrossentropy(label_smoothing=share)
    usual = keras.losses.CategoricalCrossentropy(
        from_logits=True, label_smoothing=share, axis=-1
    )
    ways = ((chunked, loss, LABELS), (plain, usual, np.eye(WORDS)[LABELS]))
    for model, own, y in ways:
        model.compile(keras.optimizers.SGD(0.5), own)
        model.train_on_batch(TOKENS, y.astype("float32" if y.ndim > 2 else "int32"))
    for new, old in zip(chunked.get_weights(), plain.get_weights(), strict=True):
        np.testing.assert_allclose(new, old, atol=1e-5)


@pytest.mark.parametrize("smoothing", [0.0, 0.1])
@pytest.mark.parametrize("by_columns", [True, False])
def test_slopes_are_those_of_numpy_to_five_digits(by_columns, smoothing):
    rows, random = 300, np.random.default_rng(2)  # three chunks, the last begins early
    states, table = (random.normal(size=(n, WIDTH)) for n in (rows, WORDS))
    labels = random.integers(0, WORDS, rows)
    weights = random.uniform(0.5, 2, rows)
    weights[::7], labels[::7] = 0, -100  # what does not count may have any label
    powers = np.exp(states @ table.T)
    by_logits = powers / powers.sum(-1, keepdims=True) - smoothing / WORDS
    by_logits[range(rows), labels % WORDS] -= 1 - smoothing
    by_logits *= weights[:, None]
    own = (x.astype("float32") for x in (states, table.T if by_columns else table))
    states32, table32 = own
    labels32, weights32 = labels.astype("int32"), weights.astype("float32")

    def total(states, table):
        whole = chunks.VocabularyTable(table, by_columns, "float32")
        return chunks.crossentropy(
            states, whole, labels32, weights32, weights32, smoothing
        )[0]

    by_states = gradient_of(
        lambda x: total(x, keras.ops.convert_to_tensor(table32)), states32
    )
    by_table = gradient_of(
        lambda x: total(keras.ops.convert_to_tensor(states32), x), table32
    )
    by_table = by_table.T if by_columns else by_table
    for found, exact in (
        (by_states, by_logits @ table),
        (by_table, by_logits.T @ states),
    ):
        assert np.abs(found - exact).max() < 1e-5 * np.abs(exact).max()


def test_accuracy_is_keras_own_in_fit_and_evaluate():
    chunked, plain = pair("tied")
    y = to_numpy(plain(TOKENS)).argmax(-1)
    y[:, ::3] = 5
    usual = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    chunked.compile("sgd", ChunkedCrossentropy())
    plain.compile("sgd", usual, metrics=["accuracy"])
    found, expected = (
        (
            model.fit(TOKENS, y, epochs=1, verbose=0).history["accuracy"][0],
            model.evaluate(TOKENS, y, verbose=0, return_dict=True)["accuracy"],
        )
        for model in (chunked, plain)
    )
    assert 0.3 < expected[0] < 1
    np.testing.assert_allclose(found, expected, rtol=1e-6)


def test_predict_gives_logits_or_the_best_words():
    chunked, plain = pair("tied")
    exact = plain.predict(TOKENS, verbose=0)
    np.testing.assert_allclose(
        chunked.predict(TOKENS, verbose=0), exact, rtol=1e-5, atol=1e-6
    )
    tokens, table, x = network("tied")
    best = keras.Model(tokens, ChunkedVocabulary(table, top_k=3)(x))
    best.set_weights(chunked.get_weights())
    values, words = best.predict(TOKENS, verbose=0)
    order = np.argsort(-exact, axis=-1)[..., :3]
    np.testing.assert_array_equal(words, order)
    expected = np.take_along_axis(exact, order, -1)
    np.testing.assert_allclose(values, expected, rtol=1e-5, atol=1e-6)
    assert best.output_shape == [(None, None, 3), (None, None, 3)]


@pytest.mark.parametrize("head", ["tied", "untied", "own"])
def test_a_file_keeps_that_the_table_is_one(head, tmp_path):
    chunked, _ = pair(head)
    chunked.compile(keras.optimizers.SGD(0.5), ChunkedCrossentropy())
    chunked.fit(TOKENS, LABELS, verbose=0)
    chunked.save(tmp_path / "model.keras")
    opened = keras.models.load_model(tmp_path / "model.keras")
    assert len(opened.weights) == len(chunked.weights)
    np.testing.assert_array_equal(
        opened.predict(TOKENS, verbose=0), chunked.predict(TOKENS, verbose=0)
    )
    told = [
        model.train_on_batch(TOKENS, LABELS, return_dict=True)["loss"]
        for model in (chunked, opened)
    ]
    np.testing.assert_allclose(*told, rtol=1e-6)


@pytest.mark.parametrize("policy", ["mixed_bfloat16", "mixed_float16"])
def test_half_precision_trains(policy):
    chunked, plain = pair("tied", dtype=policy)
    usual = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    losses = []
    for model, loss in ((chunked, ChunkedCrossentropy()), (plain, usual)):
        model.compile(keras.optimizers.SGD(0.5), loss)
        history = model.fit(TOKENS, LABELS, epochs=3, shuffle=False, verbose=0)
        losses.append(history.history["loss"])
    np.testing.assert_allclose(*losses, rtol=0.02)
    assert losses[0][-1] < losses[0][0]


def test_a_frozen_table_is_not_trained():
    chunked, _ = pair("tied")
    chunked.layers[1].trainable = False
    chunked.compile("sgd", ChunkedCrossentropy())
    before = chunked.get_weights()
    chunked.fit(TOKENS, LABELS, verbose=0)
    after = chunked.get_weights()
    np.testing.assert_array_equal(before[0], after[0])
    assert np.abs(before[1] - after[1]).max() > 0


@pytest.mark.parametrize("head", ["tied", "own"])
def test_slopes_of_a_frozen_table_are_not_made(head, monkeypatch):
    chunked, plain = pair(head)
    frozen = chunked.layers[1] if head == "tied" else chunked.layers[-1]
    likewise = plain.layers[1] if head == "tied" else plain.layers[-1]
    frozen.trainable = likewise.trainable = False
    sums = []
    loop = chunks._loop
    monkeypatch.setattr(
        chunks, "_loop", lambda *args: sums.append(len(args[-1])) or loop(*args)
    )
    usual = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    for model, loss in ((chunked, ChunkedCrossentropy()), (plain, usual)):
        model.compile(keras.optimizers.SGD(5.0), loss)
        model.fit(TOKENS, LABELS, epochs=2, shuffle=False, verbose=0)
    assert {*sums} == {3}  # loss, hits and slopes by states
    for new, old in zip(chunked.get_weights(), plain.get_weights(), strict=True):
        np.testing.assert_allclose(new, old, atol=1e-5)


def test_what_is_no_vocabulary_is_an_error():
    for wrong in (0, 2.5, L.Dense(3)):
        with pytest.raises(ConfigError, match="an Embedding, .* or a number"):
            ChunkedVocabulary(wrong)


@pytest.mark.parametrize(
    ("wrong", "word"),
    [
        ({"label_smoothing": 1.5}, "at most 1. Received: label_smoothing=1.5"),
        ({"label_smoothing": "a"}, "Received: label_smoothing='a'"),
        ({"ignore_class": "a"}, "an int or None. Received: ignore_class='a'"),
    ],
)
def test_what_a_loss_cannot_be_is_said(wrong, word):
    with pytest.raises(ConfigError, match=word):
        ChunkedCrossentropy(**wrong)


def test_a_replica_without_samples_has_no_loss():
    chunked, _ = pair("own")
    loss, states = ChunkedCrossentropy(), np.zeros((0, WIDTH), "float32")
    outputs = chunked.layers[-1](keras.ops.convert_to_tensor(states), training=True)
    assert float(loss(np.zeros((0,), "int32"), outputs)) == 0


@pytest.mark.parametrize("top_k", [0, -1, WORDS + 1, "a", True])
def test_how_many_words_there_are_is_said(top_k):
    _, table, _ = network("tied")
    with pytest.raises(ConfigError, match=f"1 to {WORDS}. Received: top_k={top_k!r}"):
        ChunkedVocabulary(table, top_k=top_k)


def test_labels_that_are_one_hot_and_a_head_of_best_words_are_refused_in_training():
    chunked, _ = pair("tied")
    chunked.compile("sgd", ChunkedCrossentropy())
    with pytest.raises(ConfigError, match="labels do not fit the predictions.*one-hot"):
        chunked.train_on_batch(TOKENS, np.eye(WORDS)[LABELS])
    tokens, table, x = network("tied")
    best = keras.Model(tokens, ChunkedVocabulary(table, top_k=3)(x))
    with pytest.raises(ConfigError, match="cannot be trained. Received: top_k=3"):
        best(TOKENS, training=True)


@pytest.mark.one_backend
def test_an_estimate_has_logits_of_some_rows_alone():
    rows, width, chunk = 1024, 16, 128
    peaks = []
    for words in (10_000, 20_000):
        states = keras.Input((width,))
        x = L.Dense(width, name="states")(states)
        head = ChunkedVocabulary(words, trainable=False)
        model = keras.Model(states, head(x))
        model.compile("sgd", ChunkedCrossentropy())
        found = km.estimate_memory(model, rows, device="cpu", method="analytic")
        peaks.append(found.peak_bytes)
    floats = 10_000 * (2 * chunk + width)  # logits, their slopes, the kernel
    assert peaks[1] - peaks[0] == pytest.approx(4 * floats, rel=0.1)


@pytest.mark.parametrize("label", [2**32 + 1, 7, -1])
def test_labels_out_of_range_without_a_head_count_as_in_keras(label, backend):
    if label > 7 and backend == "jax":
        return  # without int64
    ours = ChunkedCrossentropy()
    keras_own = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    arguments = np.array([[label, 2]]), np.arange(6, dtype="float32").reshape(1, 2, 3)
    results = []
    for loss in (ours, keras_own):
        try:
            results.append(float(loss(*arguments)))
        except Exception as error:  # noqa: BLE001 - of each framework's own kind
            results.append(type(error))
    assert results[0] == results[1] or results[0] == pytest.approx(results[1], 1e-6)


def test_a_label_of_64_bits_is_kept_with_a_head(backend):
    if backend == "jax":
        return  # without int64
    head = ChunkedVocabulary(3)
    outputs = head(np.ones((1, 2, 4), "float32"), training=True)
    try:
        loss = float(ChunkedCrossentropy()(np.array([[2**32 + 1, 2]]), outputs))
    except Exception as error:  # noqa: BLE001 - of each framework's own kind
        loss = str(error)
    assert "nan" in str(loss) or "range" in loss or "bounds" in loss


def test_a_model_with_a_chunked_head_is_copied_by_its_config():
    inputs = keras.Input((3, 4))
    model = keras.Model(inputs, ChunkedVocabulary(50)(inputs))
    assert made_of_config(model, sublayers(model)) is not None
