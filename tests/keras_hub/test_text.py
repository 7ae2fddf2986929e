"""A text, judged by a model of KerasHub with its own tokenizer."""

import json

import keras
import keras_hub
import numpy as np
import pytest
from scipy.special import log_softmax

import kerasmem as km
from kerasmem.cli import main
from kerasmem.errors import ConfigError, DataError
from kerasmem.extras.language import generation
from kerasmem.files.data.tokens import as_samples, token_samples
from kerasmem.graph.values import to_numpy
from tests.keras_hub.test_presets import LENGTH, gemma
from tests.zoo.kinds import build

pytestmark = pytest.mark.filterwarnings(
    "ignore:.*vocabulary.spm:pytest.PytestUnraisableExceptionWarning"
)


def test_a_preset_and_its_int8_form_are_compared_on_text(tmp_path, capsys):
    model, text = gemma(), "the quick brown fox the lazy dog the fox quick dog"
    model.save_to_preset(str(tmp_path / "float"))
    km.compress(tmp_path / "float", km.Quantize("int8"), output=tmp_path / "int8")
    (tmp_path / "text.txt").write_text(text)
    capsys.readouterr()
    names = [str(tmp_path / name) for name in ("float", "int8", "text.txt")]
    assert main(["compare", *names[:2], "--data", names[2], "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    first, second = (figures["metrics"] for figures in found["figures"])

    ids = np.asarray(model.preprocessor.tokenizer(text)).tolist()
    start, own = model.preprocessor.tokenizer.start_token_id, LENGTH - 1
    total, count = 0.0, 0
    for i in range(0, len(ids), own):  # a start token and seven of the text
        row = np.array([[start, *ids[i : i + own]]])
        logits = to_numpy(model({"token_ids": row, "padding_mask": row >= 0}))
        chances = log_softmax(logits.astype(np.float64), axis=-1)[0, :-1]
        total -= np.take_along_axis(chances, row[0, 1:, None], axis=-1).sum()
        count += row.shape[1] - 1
    assert found["tokens"] == count == len(ids)
    assert first["perplexity"] == pytest.approx(np.exp(total / count), 1e-5)
    assert 0 < second["kl_divergence"] < 0.1
    assert second["perplexity"] == pytest.approx(first["perplexity"], 0.1)


def test_generation_is_timed_in_turns_from_the_prompt_on(tmp_path, capsys, monkeypatch):
    gemma().save_to_preset(str(tmp_path / "a"))
    km.compress(tmp_path / "a", km.Quantize("int8"), output=tmp_path / "b")
    (tmp_path / "text.txt").write_text("the quick brown fox the lazy dog")
    x, _, _ = token_samples(tmp_path / "text.txt", km.load_model(tmp_path / "a"))
    row = x["token_ids"][:1]
    generate, prompts = keras_hub.models.GemmaCausalLM.generate, []

    def recorded(model, inputs, **options):
        new = generate(model, inputs, **options)["token_ids"]
        mask = np.asarray(inputs["padding_mask"])
        assert np.array_equal(np.where(mask, new, 0), np.where(mask, row, 0))
        prompts.append((model, int(mask.sum())))

    def timed(calls):
        for call in calls:
            call()
        return [[9, 1, 2], [30, 40, 20], [3, 3, 3], [60, 60, 70]]

    monkeypatch.setattr(keras_hub.models.GemmaCausalLM, "generate", recorded)
    monkeypatch.setattr(generation, "in_turns", timed)
    capsys.readouterr()
    line = ["compare", *(str(tmp_path / name) for name in "ab"), "--generate", "3"]
    line += ["--data", str(tmp_path / "text.txt")]
    assert main([*line, "--json"]) == 0
    first, second = json.loads(capsys.readouterr().out)["figures"]
    assert [known for _, known in prompts] == [LENGTH - 1, LENGTH - 3] * 2
    assert [model is prompts[0][0] for model, _ in prompts] == [
        True,
        True,
        False,
        False,
    ]
    assert (first["first_token_ms"], second["first_token_ms"]) == (2, 3)
    rates = [each["generated_per_second"] for each in (first, second)]
    assert rates == pytest.approx([3 / 0.030, 3 / 0.060])
    assert main(line) == 0
    assert "generated tokens" in capsys.readouterr().out
    assert main([*line[:4], str(LENGTH), *line[5:]]) == 2
    assert f"rows of {LENGTH} tokens" in capsys.readouterr().err


@pytest.mark.one_backend
def test_a_preset_is_rounded_on_text_and_keeps_its_tokenizer(tmp_path, capsys):
    gemma().save_to_preset(str(tmp_path / "float"))
    words = "the quick brown fox the lazy dog the fox quick dog "
    (tmp_path / "text.txt").write_text(3 * words)
    names = [str(tmp_path / name) for name in ("float", "int4", "text.txt")]
    capsys.readouterr()
    line = ["compress", names[0], "-o", names[1], "--data", names[2], "--json"]
    line += ["--quantize", "int4", "--quantize-rounding", "gptq"]
    assert main(line) == 0
    found = json.loads(capsys.readouterr().out)
    assert any("GPTQ" in change["detail"] for change in found["changes"])
    metrics = found["report"]["after"]["metrics"]
    assert set(metrics) == {"perplexity", "kl_divergence", "top1_agreement"}
    small = km.load_model(tmp_path / "int4")
    assert small.preprocessor.tokenizer("the fox") is not None


@pytest.mark.one_backend
@pytest.mark.filterwarnings("ignore:`shuffle=True` was passed")  # by KerasHub
def test_a_task_keeps_its_preprocessor_and_takes_token_ids_or_names_the_way_there():
    case = build("KerasHub classifier with a preprocessor")
    task, texts, labels = case.model, case.x[:8], case.y[:8]
    preprocessor = task.preprocessor
    with pytest.raises(DataError, match=r"data=task.preprocessor\(texts, labels\)"):
        km.compress(task, km.Prune(0.5), data=(texts, labels))
    data = task.preprocessor(texts, labels)
    options = {"validation_data": data, "fine_tune_epochs": 1}
    result = km.compress(task, km.Prune(0.5), data=data, **options)
    assert task.preprocessor is preprocessor
    assert result.model.predict(texts, verbose=0).shape == (8, 2)
    expected = task.evaluate(texts, labels, verbose=0, return_dict=True)["loss"]
    assert result.report.before.metrics["loss"] == pytest.approx(expected, rel=1e-5)


def gpt2():
    words = ["<|endoftext|>", "a", "b", "\u0120", "ab", "\u0120a"]
    tokenizer = keras_hub.models.GPT2Tokenizer(
        vocabulary={word: number for number, word in enumerate(words)},
        merges=["a b", "\u0120 a"],
    )
    preprocessor = keras_hub.models.GPT2CausalLMPreprocessor(tokenizer, 8)
    sizes = {"num_layers": 1, "num_heads": 2, "hidden_dim": 8, "intermediate_dim": 16}
    backbone = keras_hub.models.GPT2Backbone(len(words), max_sequence_length=8, **sizes)
    return keras_hub.models.GPT2CausalLM(backbone, preprocessor=preprocessor)


def test_a_task_is_compressed_after_another_one_failed_to_build():
    task = gpt2()
    with pytest.raises(ValueError, match="Unrecognized keyword"):
        keras_hub.models.CausalLM(backbone=task.backbone)
    small = km.compress(task, km.Quantize("int8")).model
    assert isinstance(small, keras_hub.models.GPT2CausalLM)
    ids = {name: np.ones((1, 8), "int32") for name in ("token_ids", "padding_mask")}
    expected = to_numpy(task(ids))
    error = np.linalg.norm(to_numpy(small(ids)) - expected)
    assert error < 0.03 * np.linalg.norm(expected)


def test_a_task_that_has_generated_text_is_dequantized():
    task = gpt2()
    # As docs/qlora.md: four bits, LoRA, text, floats, text.
    int4 = km.Quantize("int4", granularity="group", group_size=8)
    small = km.compress(task, int4).model
    small.backbone.enable_lora(2)
    for weight in small.backbone.trainable_weights:
        weight.assign(weight + 0.1)
    text = small.generate("ab a", max_length=8)
    floats = km.dequantize(small)
    ids = task.preprocessor.generate_preprocess(["ab a"], sequence_length=8)
    inputs = {name: np.asarray(ids[name]) for name in ("token_ids", "padding_mask")}
    np.testing.assert_allclose(
        to_numpy(floats(inputs)), to_numpy(small(inputs)), atol=1e-6
    )
    assert floats.generate("ab a", max_length=8) == text
    again = km.compress(floats, km.Quantize("int8")).model
    assert len(again.trainable_weights) == len(floats.trainable_weights)
    expected = to_numpy(floats(inputs))
    error = np.linalg.norm(to_numpy(again(inputs)) - expected)
    assert error < 0.03 * np.linalg.norm(expected)


TEXTS = ["ab a a ab a", " ab a", "ba ab"] * 6


def as_rows(task, texts, length=8):
    ids = np.concatenate([np.asarray(task.preprocessor.tokenizer(t)) for t in texts])
    start, own = task.preprocessor.tokenizer.start_token_id, length - 1
    rows = np.full((-(-len(ids) // own), own), -1)
    rows.flat[: len(ids)] = ids
    return np.pad(rows, [(0, 0), (1, 0)], constant_values=start)


@pytest.mark.parametrize("form", ["list", "tuple", "path", "text of a path"])
def test_texts_round_a_task_as_its_token_ids_do(form, tmp_path):
    task, file = gpt2(), tmp_path / "text.txt"
    texts = TEXTS if form in ("list", "tuple") else ["".join(TEXTS)]
    file.write_text(texts[0])
    data = {"list": TEXTS, "tuple": tuple(TEXTS), "path": file}.get(form, str(file))
    rows = as_rows(task, texts)
    ids = {"token_ids": np.maximum(rows, 0), "padding_mask": rows >= 0}
    config = km.Quantize("int4", rounding="gptq", granularity="group", group_size=8)
    result = km.compress(task, config, data=data, validation_data=data)
    assert any("GPTQ" in change.detail for change in result.changes)
    expected = km.compress(task, config, data=(ids,)).model
    for weight, other in zip(result.model.weights, expected.weights, strict=True):
        np.testing.assert_array_equal(to_numpy(weight), to_numpy(other))
    labels = np.pad(ids["token_ids"][:, 1:], [(0, 0), (0, 1)])
    weights = np.pad(rows[:, 1:] >= 0, [(0, 0), (0, 1)]) * ids["padding_mask"]
    task.preprocessor = None
    loss = task.evaluate(ids, labels, sample_weight=weights.astype("f4"), verbose=0)[0]
    assert result.report.before.metrics["loss"] == pytest.approx(loss, rel=1e-5)
    assert result.report.samples == len(rows)


@pytest.mark.filterwarnings("ignore:`shuffle=True` was passed")  # by KerasHub
def test_texts_fine_tune_and_distill_a_task_and_give_lengths_to_an_estimate(tmp_path):
    task = gpt2()
    config, options = km.Prune(0.5), {"data": TEXTS, "fine_tune_epochs": 1}
    tuned = km.compress(task, config, **options, seed=0).model
    moved = [
        not np.array_equal(to_numpy(old), to_numpy(new))
        for old, new in zip(task.weights, tuned.weights, strict=True)
        if "bias" in old.path
    ]
    assert moved
    assert all(moved)
    trained = km.distill(task, gpt2(), TEXTS, validation_data=TEXTS, verbose=0)
    assert np.isfinite(trained.history.history["val_loss"][0])
    (tmp_path / "a.txt").write_text(" ".join(TEXTS))
    by_text, by_file = (
        km.estimate_memory(task, 2, optimizer="adam", data=data)
        for data in (TEXTS, str(tmp_path / "a.txt"))
    )
    lengths = {"token_ids": (8,), "padding_mask": (8,)}
    by_shape = km.estimate_memory(task, 2, optimizer="adam", input_shape=lengths)
    assert by_text.peak_bytes == by_file.peak_bytes == by_shape.peak_bytes


@pytest.mark.one_backend
def test_texts_that_a_model_cannot_take_are_refused_with_the_way_there():
    layers = [keras.layers.Embedding(6, 4), keras.layers.Dense(6)]
    plain = keras.Sequential([keras.Input((None,), dtype="int32"), *layers])
    prune = km.Prune(0.5)
    fault = r"^Expected token ids, because .* has no preprocessor .*Next: data=task.pre"
    with pytest.raises(DataError, match=fault):
        km.compress(plain, prune, data=TEXTS)
    with pytest.raises(DataError, match="has no preprocessor"):
        km.compress(plain, prune, validation_data=TEXTS)
    classifier = build("KerasHub classifier with a preprocessor")
    with pytest.raises(DataError, match="which does not predict tokens"):
        km.compress(classifier.model, prune, data=list(classifier.x[:8]))
    with pytest.raises(DataError, match="a list of texts without labels"):
        km.compress(gpt2(), prune, data=(TEXTS, np.zeros(len(TEXTS))))
    with pytest.raises(DataError, match="`data` must have at least two tokens"):
        km.compress(gpt2(), prune, data=["", ""])


@pytest.mark.one_backend
def test_texts_need_the_task_of_a_preset_in_memory(tmp_path):
    gpt2().save_to_preset(str(tmp_path / "float"))
    output, int8 = tmp_path / "int8", km.Quantize("int8")
    with pytest.raises(ConfigError, match="data of tokens needs the model in memo"):
        km.compress(
            tmp_path / "float", int8, data=TEXTS, output=output, low_memory=True
        )
    km.compress(tmp_path / "float", int8, data=TEXTS, output=output)
    assert (output / "task.json").exists()


@pytest.mark.one_backend
def test_strings_stay_strings_for_a_model_that_takes_strings():
    texts = keras.Input((), dtype="string")
    layer = keras.layers.TextVectorization(vocabulary=["a", "b"], output_mode="count")
    model = keras.Model(texts, keras.layers.Dense(2)(layer(texts)))
    assert as_samples(model, TEXTS)[0] is TEXTS


@pytest.mark.one_backend
def test_the_reported_size_of_a_preset_is_that_of_its_folder(tmp_path, capsys):
    gpt2().save_to_preset(str(tmp_path / "float"))
    (tmp_path / "text.txt").write_text("".join(TEXTS))
    floats, int8 = str(tmp_path / "float"), str(tmp_path / "int8")
    tokens = ["--data", str(tmp_path / "text.txt")]
    capsys.readouterr()
    line = ["compress", floats, "-o", int8, "--quantize", "int8", "--json"]
    assert main(line + tokens) == 0
    report = json.loads(capsys.readouterr().out)["report"]
    assert main(["compare", floats, int8, *tokens, "--json"]) == 0
    compared = json.loads(capsys.readouterr().out)["figures"]
    for name, figures, other in zip(
        (floats, int8), (report["before"], report["after"]), compared, strict=True
    ):
        files = [file for file in (tmp_path / name).rglob("*") if file.is_file()]
        size = sum(file.stat().st_size for file in files)
        assert other["file_bytes"] == size
        # Presets contain the time of their creation.
        assert abs(figures["file_bytes"] - size) < 64
