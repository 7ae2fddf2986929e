"""`kerasmem evaluate` and `compare` of language models, and two of any kind."""

from pathlib import Path

import keras
import numpy as np
import pytest
from scipy.special import log_softmax, rel_entr, softmax

import kerasmem as km
from kerasmem.extras.language import metrics as language
from kerasmem.files.data.tokens import token_samples
from kerasmem.graph.values import nbytes, to_numpy

L = keras.layers
TOKENS, WIDTH, LENGTH = 20, 8, 6


def language_model(*, mask=False, end=None, length=None, padding="causal"):
    """A net of a causal convolution; it takes the mask and does nothing with it."""
    keras.utils.set_random_seed(5)
    ids = keras.Input((length,), dtype="int32", name="token_ids")
    inputs = {"token_ids": ids}
    if mask:
        inputs["padding_mask"] = keras.Input((length,), name="padding_mask")
    x = L.Embedding(TOKENS, WIDTH, embeddings_initializer="normal", name="table")(ids)
    x = L.Conv1D(16, 3, padding=padding, activation="tanh", name="conv")(x)
    x = L.Dense(TOKENS, activation=end, name="head")(x)
    model = keras.Model(inputs if mask else ids, x)
    for weight in model.weights:
        weight.assign(3 * to_numpy(weight) + 0.1)
    return model


def some_ids(count, seed=2):
    return np.random.default_rng(seed).integers(0, TOKENS, count)


def logits(model, rows):
    return to_numpy(model(rows)).astype(np.float64)


def by_hand(model, rows):
    """Return the log-probabilities of the next ids, (rows, length - 1)."""
    found = log_softmax(logits(model, rows), axis=-1)[:, :-1]
    return np.take_along_axis(found, rows[:, 1:, None], axis=-1)[..., 0]


@pytest.fixture
def tokens(folder):
    """44 ids, which are seven rows of six and one of two."""
    ids = some_ids(44)
    np.save("ids.npy", ids)
    return ids


def test_perplexity_is_that_of_numpy_and_padding_does_not_count(tokens, kerasmem):
    model = language_model()
    model.save("lm.keras")
    line = f"evaluate lm.keras --data ids.npy --length {LENGTH}"
    assert "perplexity (36 tokens)" in kerasmem(line).out
    line += " --json"
    found = kerasmem(line).json
    own = [
        *by_hand(model, tokens[:42].reshape(7, 6)),
        *by_hand(model, tokens[None, 42:]),
    ]
    expected = np.exp(-np.mean(np.concatenate(own)))
    assert found["tokens"] == found["figures"]["tokens"] == 7 * 5 + 1
    assert found["figures"]["metrics"] == {"perplexity": pytest.approx(expected, 1e-5)}
    small = kerasmem(f"{line} --batch-size 2").json["figures"]
    assert small["metrics"]["perplexity"] == pytest.approx(expected, 1e-5)
    assert small["latency_batch_size"] == 2
    rate = 2 * LENGTH / (small["latency_ms"] / 1e3)
    assert small["tokens_per_second"] == pytest.approx(rate)


def test_what_stands_at_padded_places_changes_nothing(folder, kerasmem):
    model = language_model(mask=True)
    model.save("lm.keras")
    ids, mask = some_ids((4, LENGTH)), np.ones((4, LENGTH), "int32")
    mask[1, 3:] = mask[3, 5:] = 0
    found = []
    for other in (0, 7):
        np.savez("ids.npz", token_ids=np.where(mask, ids, other), padding_mask=mask)
        call = kerasmem("evaluate lm.keras --data ids.npz --json").json
        found.append(call["figures"]["metrics"]["perplexity"])
    own = by_hand(lambda rows: model({"token_ids": rows, "padding_mask": mask}), ids)
    expected = np.exp(-own[mask[:, 1:] == 1].mean())
    assert found == [pytest.approx(expected, 1e-5)] * 2


@pytest.mark.one_backend
def test_a_mask_of_one_axis_is_cut_as_the_ids_are(tmp_path):
    ids, mask = some_ids(44), np.arange(44) < 20  # rows of 6, 6, 6 and 2
    np.savez(tmp_path / "ids.npz", token_ids=ids, padding_mask=mask)
    _, _, weight = token_samples(tmp_path / "ids.npz", language_model(), LENGTH)
    assert weight.sum(axis=1).tolist() == [5, 5, 5, 1, 0, 0, 0, 0]


@pytest.mark.one_backend
def test_a_token_counts_if_it_and_the_next_one_are_no_padding(tmp_path):
    mask = np.array([[0, 0, 1, 1, 1, 1], [1, 1, 1, 0, 0, 0], [1, 1, 0, 0, 1, 1]])
    ids = some_ids(mask.shape)
    np.savez(tmp_path / "ids.npz", token_ids=ids, padding_mask=mask)
    _, _, weight = token_samples(tmp_path / "ids.npz", language_model(), LENGTH)
    counted = [[0, 0, 1, 1, 1, 0], [1, 1, 0, 0, 0, 0], [1, 0, 0, 0, 1, 0]]
    assert weight.tolist() == counted


@pytest.mark.parametrize("end", [None, "softmax"])
def test_divergence_is_that_of_scipy(tokens, kerasmem, end):
    model = language_model(end=end)
    model.save("a.keras")
    km.compress(model, km.Quantize("int4")).save("b.keras")
    line = f"compare a.keras b.keras --data ids.npy --length {LENGTH}"
    call = kerasmem(f"{line} --json").json
    first, second = call["figures"]
    exact, other = (
        found if end else softmax(found, axis=-1)
        for found in (
            np.concatenate(
                [
                    logits(km.load_model(path), rows)[:, :-1].reshape(-1, TOKENS)
                    for rows in (tokens[:42].reshape(7, 6), tokens[None, 42:])
                ]
            )
            for path in ("a.keras", "b.keras")
        )
    )
    metrics = second["metrics"]
    divergence = rel_entr(exact, other).sum(-1).mean()
    assert divergence > 1e-3
    assert metrics["kl_divergence"] == pytest.approx(divergence, rel=1e-3)
    agreement = np.mean(exact.argmax(-1) == other.argmax(-1))
    assert metrics["top1_agreement"] == pytest.approx(agreement)
    assert set(first["metrics"]) == {"perplexity"}
    assert "kl_divergence" in kerasmem(line).out


def test_logits_are_there_for_a_few_rows_at_a_time(monkeypatch):
    rows = some_ids((9, LENGTH))
    data = rows, np.roll(rows, -1, axis=1), np.ones(rows.shape, "float32")
    seen, model = [], language_model()
    batches = language.outputs_on
    monkeypatch.setattr(
        language, "outputs_on", lambda m, x: seen.append(len(x)) or batches(m, x)
    )
    monkeypatch.setattr(language, "_LOGIT_BYTES", 2 * 4 * LENGTH * TOKENS)
    language.language_figures({"lm": model}, data)
    assert seen == [1, 1, 2, 2, 2, 2, 1]  # two to look at the model


def test_a_token_reads_all_weights_but_one_row_of_the_table():
    model = language_model()
    total = sum(map(nbytes, model.weights))
    assert language.token_bytes(model) == total - 4 * (TOKENS - 1) * WIDTH
    small = km.compress(model, km.Quantize("int8")).model
    total = sum(map(nbytes, small.weights))
    assert language.token_bytes(small) == total - (TOKENS - 1) * (WIDTH + 4)
    ids = keras.Input((None,), dtype="int32")
    table = L.ReversibleEmbedding(TOKENS, WIDTH)
    tied = keras.Model(ids, table(table(ids), reverse=True))
    assert language.token_bytes(tied) == 4 * TOKENS * WIDTH
    table = L.Embedding(TOKENS, WIDTH)
    tied = keras.Model(ids, km.layers.ChunkedVocabulary(table)(table(ids)))
    assert language.token_bytes(tied) == 4 * TOKENS * WIDTH


def test_any_two_models_are_compared(folder, kerasmem):
    km.compress("model.keras", km.Quantize("int8")).save("small.keras")
    call = kerasmem("compare model.keras small.keras --data split.npz --json").json
    alone = [
        kerasmem(f"evaluate {name}.keras --data split.npz --json").json["figures"]
        for name in ("model", "small")
    ]
    for found, expected in zip(call["figures"], alone, strict=True):
        assert found["metrics"] == pytest.approx(expected["metrics"])
        assert found["file_bytes"] == expected["file_bytes"]
    assert (call["split"], call["samples"]) == ("test", 10)


@pytest.mark.one_backend
def test_what_is_no_language_model_is_refused_in_one_line(tokens, refused):
    for model, reason in (
        ("model", "is not a language model"),
        ("both", "is not causal: its outputs for earlier tokens change"),
        ("fixed", "takes rows of 5 tokens"),
    ):
        if model == "both":
            language_model(padding="same").save("both.keras")
        if model == "fixed":
            language_model(length=5).save("fixed.keras")
        message = refused(f"evaluate {model}.keras --data ids.npy --length {LENGTH}")
        assert reason in message
    language_model().save("lm.keras")
    np.save("large.npy", tokens + 1)
    np.save("floats.npy", tokens / 2)
    Path("text.txt").write_text("a word")
    for data, reason in (
        ("large.npy", "ids from 0 to 20"),
        ("floats.npy", "ids must be integers"),
        ("text.txt", "has no preprocessor with a tokenizer"),
        ("missing.npy", "missing.npy cannot be read: No such file"),
    ):
        assert reason in refused(f"evaluate lm.keras --data {data}")
    line = "evaluate lm.keras --data ids.npy --length 6 --generate 2"
    assert "Generation needs a CausalLM of KerasHub" in refused(line)
    line = "evaluate model.keras --data split.npz --generate 2"
    assert "--generate is only valid for text or token ids" in refused(line)
    line = "evaluate lm.keras --data ids.npy --metric accuracy"
    assert "evaluated by its perplexity" in refused(line)
    rows = keras.Input((None,), dtype="int32")
    keras.Model(rows, keras.layers.Embedding(5, 5)(rows)).save("few.keras")
    line = "compare lm.keras few.keras --data ids.npy"
    assert "has 5 tokens, numbered from 0" in refused(line)
    model = language_model()
    for weight in model.weights:
        weight.assign(np.full(weight.shape, np.nan))
    model.save("nan.keras")
    assert "returns NaN" in refused("evaluate nan.keras --data ids.npy")
    line = "compare lm.keras lm.keras --data ids.npy"
    assert "Expected two different models" in refused(line)


@pytest.mark.one_backend
def test_only_the_named_figures_are_measured(tokens, kerasmem, refused):
    language_model().save("lm.keras")
    names = {"file": "file_bytes", "weights": "weight_bytes", "latency": "latency_ms"}
    line = "evaluate lm.keras --data ids.npy --length 6"
    found = kerasmem(f"{line} --json").json["figures"]
    assert all(found[figure] is not None for figure in names.values())
    for name in names:
        own = kerasmem(f"{line} --measure {name} --json").json["figures"]
        assert [key for key in names.values() if own[key] is not None] == [names[name]]
        assert own["metrics"] == {}
    own = kerasmem(f"{line} --measure metrics --json").json["figures"]
    assert own["metrics"] == found["metrics"]
    assert "measure='speed'" in refused(f"{line} --measure speed")


@pytest.mark.one_backend
def test_a_damaged_file_of_ids_is_refused(tokens, refused):
    language_model().save("lm.keras")
    np.savez("ids.npz", token_ids=tokens.reshape(4, 11))
    whole = Path("ids.npz").read_bytes()
    Path("ids.npz").write_bytes(whole.replace(b"\x93NUMPY", b"\x93NUMPA"))
    assert "contains no tokens" in refused("evaluate lm.keras --data ids.npz")
    Path("ids.npy").write_bytes(Path("ids.npy").read_bytes()[:90])
    assert "contains no tokens" in refused("evaluate lm.keras --data ids.npy")
