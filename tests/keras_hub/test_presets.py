"""A preset of KerasHub comes in and goes out: weights smaller, all else as it was."""

import io
import json
import shutil
import subprocess
import sys

import keras
import keras_hub
import numpy as np
import pytest
import sentencepiece

import kerasmem as km
from kerasmem.errors import (
    ConfigError,
    KerasMemWarning,
    ModelFileError,
    OutputError,
)
from kerasmem.files import inspect_file
from kerasmem.graph.values import to_numpy
from tests.keras_hub.families import FAMILIES, samples

# KerasHub leaves the files of a SentencePiece tokenizer to be closed by Python.
pytestmark = pytest.mark.filterwarnings(
    "ignore:.*vocabulary.spm:pytest.PytestUnraisableExceptionWarning"
)
M = keras_hub.models
PROMPT, LENGTH = ["the quick"], 8
TOKENS = {
    "token_ids": np.arange(16).reshape(2, 8) % 9,
    "padding_mask": np.ones((2, 8), "int32"),
}
REST = {
    "assets/tokenizer/vocabulary.spm",
    "metadata.json",
    "preprocessor.json",
    "tokenizer.json",
}
OPENED = """
import sys
import kerasmem, keras_hub
import numpy as np
from keras import ops
for folder in sys.argv[2:]:
    model = keras_hub.models.CausalLM.from_preset(folder)
    np.save(folder + ".npy", ops.convert_to_numpy(model(dict(np.load(sys.argv[1])))))
    print(*model.generate(["the quick"], max_length=8))
"""


def tokenizer():
    proto = io.BytesIO()
    names = {"pad": 0, "eos": 1, "bos": 2, "unk": 3}
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(["the quick brown fox", "the lazy dog"]),
        model_writer=proto,
        model_type="WORD",
        vocab_size=30,
        hard_vocab_limit=False,
        user_defined_symbols=["<start_of_turn>"],
        minloglevel=9,
        **{f"{name}_id": number for name, number in names.items()},
        **{f"{name}_piece": f"<{name}>" for name in names},
    )
    return M.GemmaTokenizer(proto=proto.getvalue())


def gemma(**options):
    keras.utils.set_random_seed(3)
    tokens = tokenizer()
    backbone = M.GemmaBackbone(
        vocabulary_size=tokens.vocabulary_size(),
        num_layers=1,
        num_query_heads=2,
        num_key_value_heads=1,
        head_dim=8,
        hidden_dim=32,
        intermediate_dim=64,
        **options,
    )
    preprocessor = M.GemmaCausalLMPreprocessor(tokens, sequence_length=LENGTH)
    return M.GemmaCausalLM(backbone, preprocessor=preprocessor)


@pytest.fixture(scope="module")
def preset(tmp_path_factory):
    folder = tmp_path_factory.mktemp("presets") / "gemma"
    gemma().save_to_preset(str(folder))
    return folder


def files(folder):
    found = (file for file in folder.rglob("*") if file.is_file())
    return {file.relative_to(folder).as_posix(): file.read_bytes() for file in found}


def answers(model, x=TOKENS):
    return to_numpy(model(x))


def opened_elsewhere(*folders):
    """Return what models of presets answer in another process, and what they write."""
    x = folders[0].with_name("x.npz")
    np.savez(x, **TOKENS)
    command = [sys.executable, "-c", OPENED, x, *folders]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    found = [np.load(f"{folder}.npy") for folder in folders]
    return zip(found, done.stdout.splitlines()[-len(folders) :], strict=True)


def test_another_process_opens_compressed_presets_with_and_without_lora(
    preset, tmp_path
):
    schemes, with_lora = ["int8", "int4"], []
    for scheme in schemes:
        km.compress(preset, km.Quantize(scheme), output=tmp_path / scheme)
        model = km.compress(km.load_model(preset), km.Quantize(scheme)).model
        before = answers(model)
        model.backbone.enable_lora(2)
        for weight in model.trainable_weights:
            weight.assign(to_numpy(weight) + 0.1)
        assert np.abs(answers(model) - before).max() > 0.01
        (tmp_path / f"{scheme}-lora").mkdir()
        (tmp_path / f"{scheme}-lora" / "task.json").write_text("replaced")
        model.save_to_preset(tmp_path / f"{scheme}-lora")
        with_lora.append(model)
    folders = [*schemes, *(f"{scheme}-lora" for scheme in schemes)]
    opened = [*opened_elsewhere(*(tmp_path / folder for folder in folders))]
    plain = [
        km.compress(km.load_model(preset), km.Quantize(scheme)).model
        for scheme in schemes
    ]
    for expected, (found, text) in zip([*plain, *with_lora], opened, strict=True):
        np.testing.assert_array_equal(found, answers(expected))
        assert text == expected.generate(PROMPT, max_length=LENGTH)[0]
    assert files(tmp_path / "int4-lora").keys() == files(preset).keys()


@pytest.mark.one_backend
def test_a_tokenizer_that_does_not_open_is_reported_before_the_work(preset, tmp_path):
    damaged, output = tmp_path / "damaged", tmp_path / "int8"
    shutil.copytree(preset, damaged)
    (damaged / "assets/tokenizer/vocabulary.spm").unlink()
    with pytest.warns(KerasMemWarning, match="cannot be opened") as told:
        km.compress(damaged, km.Quantize("int8"), output=output)
    message = str(told[0].message)
    assert "vocabulary.spm" in message
    assert "only weights are compressed" in message
    assert told[0].filename == __file__
    assert files(output)["model.weights.h5"] != files(damaged)["model.weights.h5"]
    with pytest.raises(ModelFileError, match="vocabulary.spm"):  # needs the task
        km.compress(damaged, km.Factorize(0.5), output=tmp_path / "low")


@pytest.mark.one_backend
@pytest.mark.parametrize("scheme", ["int8", "int4"])
def test_all_but_the_weights_stays_as_it_is(preset, tmp_path, scheme):
    before, output = files(preset), tmp_path / scheme
    result = km.compress(preset, km.Quantize(scheme), output=output)
    assert files(preset) == before
    after = files(output)
    assert {name: after[name] for name in REST} == {name: before[name] for name in REST}
    assert after.keys() == before.keys()
    sizes = result.report.before.file_bytes, result.report.after.file_bytes
    assert sizes == tuple(sum(map(len, each.values())) for each in (before, after))
    assert result.report.weight_ratio > {"int8": 3, "int4": 4.5}[scheme]
    # A compressed preset is one like any other.
    again = km.compress(output, km.Prune(0.5, include="scale$"), output=tmp_path / "b")
    assert again.report.before.weight_bytes == result.report.after.weight_bytes
    assert {*map(type, again.model.backbone.layers)} == {
        *map(type, result.model.backbone.layers)
    }


@pytest.mark.one_backend
def test_what_a_result_in_memory_writes_is_the_same_preset(preset, tmp_path):
    km.compress(preset, km.Quantize("int4"), output=tmp_path / "a")
    result = km.compress(km.load_model(preset), km.Quantize("int4"))
    classes = [type(layer) for layer in result.model._flatten_layers()]
    result.save(tmp_path / "b")
    assert [type(layer) for layer in result.model._flatten_layers()] == classes
    result.save(tmp_path / "still.keras")  # as before it was a preset
    a, b = (files(tmp_path / name) for name in "ab")
    assert a.keys() == b.keys()
    del a["metadata.json"], b["metadata.json"]  # dated
    told = {name for name in a if not name.endswith(".h5")}
    assert {name: a[name] for name in told} == {name: b[name] for name in told}
    found = [answers(km.load_model(tmp_path / name)) for name in "ab"]
    np.testing.assert_array_equal(*found)


@pytest.mark.one_backend
def test_a_head_beside_the_backbone_stays_float_and_computes_alike(tmp_path):
    model = FAMILIES["Bert"]()
    x = samples(model)
    model.save_to_preset(str(tmp_path / "float"))
    result = km.compress(model, km.Quantize("int8"))
    assert any("logits" in c.weight for c in result.changes if c.changed)
    result.save(tmp_path / "small")
    found = answers(M.BertTextClassifier.from_preset(str(tmp_path / "small")), x)
    np.testing.assert_allclose(found, answers(result.model, x), atol=1e-6)
    by_file = km.compress(
        tmp_path / "float", km.Quantize("int8"), output=tmp_path / "by_file"
    )
    assert not any("logits" in change.weight for change in by_file.changes)
    found = answers(M.BertTextClassifier.from_preset(str(tmp_path / "by_file")), x)
    np.testing.assert_array_equal(found, answers(by_file.model, x))
    np.testing.assert_allclose(found, answers(result.model, x), atol=0.02)


@pytest.mark.one_backend
def test_a_backbone_alone_its_shards_and_its_type_are_taken(tmp_path):
    backbone = gemma(dtype="bfloat16").backbone
    backbone.save_to_preset(str(tmp_path / "in"), max_shard_size=5e-6)
    assert len([*(tmp_path / "in").glob("model_*.weights.h5")]) > 1
    assert km.load_model(tmp_path / "in").compute_dtype == "bfloat16"
    result = km.compress(tmp_path / "in", km.Quantize("int8"), output=tmp_path / "out")
    assert {*files(tmp_path / "out")} == {
        *("config.json", "metadata.json", "model.weights.h5")
    }
    loaded = km.load_model(tmp_path / "out")
    assert isinstance(loaded, M.GemmaBackbone)
    assert loaded.compute_dtype == "bfloat16"
    expected = km.compress(backbone, km.Quantize("int8")).model
    for model in (loaded, result.model):
        np.testing.assert_array_equal(answers(model), answers(expected))
    assert {t.dtype for t in inspect_file(tmp_path / "out").tensors} >= {"int8"}


@pytest.mark.one_backend
@pytest.mark.filterwarnings("ignore:.shuffle=True.")  # of KerasHub's own `fit`
def test_data_and_other_steps_take_the_task_into_memory(tmp_path):
    model = M.GemmaCausalLM(gemma().backbone, preprocessor=None)
    model.save_to_preset(str(tmp_path / "in"))
    x = {name: np.repeat(array, 8, 0) for name, array in TOKENS.items()}
    data = x, x["token_ids"]
    result = km.compress(
        tmp_path / "in",
        [km.Prune(0.5), km.Quantize("int8")],
        data=data,
        validation_data=data,
        fine_tune_epochs=1,
        output=tmp_path / "out",
    )
    assert result.report.after.metrics
    found = answers(M.GemmaCausalLM.from_preset(str(tmp_path / "out")))
    np.testing.assert_array_equal(found, answers(result.model))
    assert files(tmp_path / "out").keys() == files(tmp_path / "in").keys()


@pytest.mark.one_backend
def test_layers_that_want_their_weights_in_memory_get_them(tmp_path):
    FAMILIES["DINOV2"]().save_to_preset(str(tmp_path / "in"))
    models = [
        km.compress(
            tmp_path / "in",
            km.Quantize("int8"),
            output=tmp_path / f"out{low_memory}",
            low_memory=low_memory,
        ).model
        for low_memory in (True, False)
    ]
    x = samples(models[0])
    loaded = km.load_model(tmp_path / "outTrue")
    np.testing.assert_array_equal(answers(loaded, x), answers(models[0], x))
    np.testing.assert_array_equal(answers(loaded, x), answers(models[1], x))


def without(*names):
    def change(folder):
        for name in names:
            (folder / name).unlink()

    return change


def written(name, content):
    return lambda folder: (folder / name).write_bytes(content)


@pytest.mark.one_backend
@pytest.mark.parametrize(
    ("change", "text"),
    [
        (without("config.json"), "is incomplete: it has no config.json"),
        (without("model.weights.h5"), "neither model.weights.h5 nor"),
        (without("assets/tokenizer/vocabulary.spm"), "vocabulary.spm` doesn't exist"),
        (written("task.json", b"{"), "task.json' is damaged"),
        (written("task.json", b'{"model_type": "gemma"}'), "no config of a Keras mod"),
        (written("task.json", b'{"class_name": "Dense", "module": "keras.layers", '
                 b'"config": {"units": 1}, "registered_name": null}'),
         "contains a Dense. Expected: a KerasHub task"),
        (written("model.weights.h5", b"no"), "model.weights.h5' is damaged"),
    ],
)  # fmt: skip
def test_a_preset_that_is_not_whole_is_one_clear_error(preset, tmp_path, change, text):
    folder = tmp_path / "in"
    shutil.copytree(preset, folder)
    change(folder)
    with pytest.raises(ModelFileError, match=text):
        km.load_model(folder)
    if "vocabulary" not in text and "Dense" not in text:  # of these nothing is opened
        with pytest.raises(ModelFileError, match=text):
            km.compress(folder, km.Quantize("int8"), output=tmp_path / "out")
        assert [*tmp_path.iterdir()] == [folder]


@pytest.mark.one_backend
def test_an_output_that_is_there_is_left_alone(preset, tmp_path, monkeypatch):
    job = {"model_or_path": preset, "steps": km.Quantize("int8")}
    with pytest.raises(ConfigError, match="but the path exists"):
        km.compress(output=preset, **job)
    with pytest.raises(ConfigError, match="no folder .*nowhere"):
        km.compress(output=tmp_path / "nowhere" / "out", **job)
    with pytest.raises(ConfigError, match="cannot read presets with entropy coding"):
        km.compress(output=tmp_path / "out", coding="entropy", **job)
    with pytest.raises(ConfigError, match="the output of a preset is a preset"):
        km.compress(output=tmp_path / "a.keras", low_memory=True, **job)
    (tmp_path / "empty").mkdir()
    result = km.compress(output=tmp_path / "empty", **job)
    with pytest.raises(ConfigError, match="but the path exists"):
        result.save(tmp_path / "empty" / "..")
    result.save(tmp_path / "copy")
    assert files(tmp_path / "copy") == files(tmp_path / "empty")

    def full(*_, **__):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(shutil, "copyfile", full)
    with pytest.raises(OutputError, match="No space left"):
        km.compress(output=tmp_path / "full", **job)
    assert {path.name for path in tmp_path.iterdir()} == {"empty", "copy"}


@pytest.mark.one_backend
def test_no_code_of_a_preset_is_run(preset, tmp_path):
    shutil.copytree(preset, tmp_path / "in")
    config = json.loads((tmp_path / "in" / "task.json").read_bytes())
    lambda_ = keras.layers.Lambda(lambda x: x)
    config["config"]["preprocessor"] = keras.saving.serialize_keras_object(lambda_)
    (tmp_path / "in" / "task.json").write_text(json.dumps(config))
    with pytest.raises(ModelFileError, match="code in a file is never executed"):
        km.load_model(tmp_path / "in")
