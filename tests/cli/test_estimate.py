"""`kerasmem estimate`: the memory a saved model will need, and whether it fits."""

import json
import math
from pathlib import Path

import keras
import pytest

import kerasmem as km
from kerasmem.records import MemoryEstimate


def test_it_tells_categories_layers_and_the_verdict(folder, kerasmem):
    call = kerasmem("estimate model.keras --batch-size 64 --memory-limit 8GiB")
    assert call.code == 0
    for text in ("optimizer state", "hidden", "peak:", "in nine of ten cases between"):
        assert text in call.out
    assert "fits: limit 8.00 GiB, estimated need" in call.out


def test_json_holds_the_estimate_and_the_verdict(folder, kerasmem):
    found = kerasmem("estimate model.keras --memory-limit 1KiB --json").json
    assert found["verdict"] == "does not fit"
    assert found["memory_limit_bytes"] == 1024
    assert found["batch_size"] == 32
    parameters = sum(
        part["nbytes"] for part in found["parts"] if part["category"] == "parameter"
    )
    assert parameters == 4 * (6 * 32 + 32 + 32 * 3 + 3)
    assert set(found) - {"model", "verdict", "memory_limit_bytes"} == set(
        MemoryEstimate.__dataclass_fields__
    )


@pytest.mark.one_backend
def test_the_shape_of_one_of_several_inputs_is_not_enough(folder, refused, kerasmem):
    ids, mask = (keras.Input((None, 4), name=name) for name in ("ids", "mask"))
    keras.Model([ids, mask], keras.layers.Add()([ids, mask])).save("two.keras")
    line = "estimate two.keras --predict --input-shape 24,4"
    message = refused(line)
    assert "Received: input 'mask' of shape (batch, None, 4)." in message
    assert "(--input-shape, once for each of ids, mask, in this order)" in message
    third = f"{line} --input-shape 4,4 --input-shape 4,4"
    assert "--input-shape once per input, in this order" in refused(third)
    assert kerasmem(f"{line} --input-shape 24,4").code == 0


@pytest.mark.one_backend
def test_a_step_is_compiled_if_asked_for(folder, kerasmem):
    command = "estimate model.keras --backend tensorflow --device gpu --json --jit"
    for word, expected in {"on": True, "off": False}.items():
        assert kerasmem(f"{command} {word}").json["jit_compile"] is expected


@pytest.mark.one_backend
def test_a_loss_that_keras_does_not_know_is_refused(folder, kerasmem):
    call = kerasmem("estimate model.keras --loss nothing")
    assert (call.code, call.out) == (2, "")
    assert "nothing" in call.err


@pytest.mark.one_backend
def test_a_limit_within_the_interval_is_too_close_to_call(folder, kerasmem):
    found = kerasmem("estimate model.keras --json").json
    limit = (found["low_bytes"] + found["high_bytes"]) // 2
    again = kerasmem(f"estimate model.keras --memory-limit {limit} --json").json
    assert again["verdict"] == "too close to call"


def test_predict_needs_less_than_training_and_no_optimizer(
    folder, kerasmem, new_network
):
    new_network(compiled=False).save("plain.keras")
    predict = kerasmem("estimate plain.keras --predict --json").json
    training = kerasmem("estimate plain.keras --optimizer adam --json").json
    assert predict["peak_bytes"] < training["peak_bytes"]


@pytest.mark.one_backend
def test_without_an_optimizer_adam_is_assumed_and_said_so(
    folder, kerasmem, new_network
):
    new_network(compiled=False).save("plain.keras")
    call = kerasmem("estimate plain.keras --json")
    named = kerasmem("estimate plain.keras --optimizer adam --json").json
    assert call.json == named | {"assumed_optimizer": "adam"}
    assert "loaded without an optimizer: adam is assumed" in call.err
    assert "--optimizer NAME" in call.err
    assert "assumed" not in kerasmem("estimate model.keras").err


@pytest.mark.one_backend
def test_without_an_optimizer_open_lengths_are_the_only_error(folder, kerasmem):
    inputs = [keras.Input((None, 8), name="one"), keras.Input((4,), name="two")]
    more = keras.Input((None, None, 3), name="three")
    keras.Model([*inputs, more], [x * 2 for x in (*inputs, more)]).save("open.keras")
    call = kerasmem("estimate open.keras")
    assert call.code == 2
    assert call.err.count("\n") == 1
    assert (
        "input 'one' of shape (batch, None, 8) and input 'three' of shape (batch, "
        "None, None, 3). Next: pass input_shape= (--input-shape, once for each of one, "
        "two, three, in this order) without" in call.err
    )


@pytest.mark.one_backend
def test_it_answers_for_another_backend_and_device(folder, kerasmem):
    found = kerasmem("estimate model.keras --backend torch --device cpu --json").json
    assert (found["backend"], found["device"]) == ("torch", "cpu")


@pytest.mark.one_backend
def test_a_step_is_measured_on_this_cpu(folder, kerasmem):
    found = kerasmem("estimate model.keras --method measured --json").json
    assert (found["method"], found["device"]) == ("measured", "cpu")
    assert 0 < found["low_bytes"] < found["peak_bytes"] < found["high_bytes"]


@pytest.mark.one_backend
@pytest.mark.parametrize(
    ("options", "text"),
    [
        ("model.keras --memory-limit 8G", "a size such as 8GiB, received '8G'"),
        ("model.keras --optimizer adamm", "Did you mean 'adam'?"),
        ("model.keras --quantize mixed", "Next: compress the model, and estimate"),
        ("model.keras --batch-size 0", "whole number from 1"),
        ("model.keras --method guess", "one of auto, analytic, traced"),
        ("model.keras --backend numpy", "Received: backend='numpy'"),
        ("missing.keras", "missing.keras"),
    ],
)
def test_wrong_input_is_one_line_and_code_two(
    folder, kerasmem, new_network, options, text
):
    new_network(compiled=False).save("plain.keras")
    call = kerasmem(f"estimate {options}")
    assert call.code == 2
    assert text in call.err
    assert call.err.count("\n") == 1


@pytest.mark.one_backend
def test_a_length_that_the_model_leaves_open_can_be_given(folder, kerasmem):
    inputs = keras.Input((None, 8))
    keras.Model(inputs, keras.layers.Dense(4)(inputs)).save("open.keras")
    options = "open.keras --optimizer adam --json"
    short, long = (
        kerasmem(f"estimate {options} --input-shape {length},8").json["peak_bytes"]
        for length in (64, 640)
    )
    assert long > short
    call = kerasmem(f"estimate {options}")
    assert (call.code, "--input-shape" in call.err) == (2, True)
    call = kerasmem(f"estimate {options} --input-shape 8x")
    assert (call.code, "such as 128,64" in call.err) == (2, True)


@pytest.fixture
def preset(folder):
    """Return a model of KerasHub, whose preset in the folder has no weights."""
    from tests.keras_hub.test_presets import gemma

    model = gemma()
    model.save_to_preset("preset")
    for weights in Path("preset").glob("*.h5"):
        weights.unlink()
    return model


# KerasHub leaves the files of a SentencePiece tokenizer to be closed by Python.
@pytest.mark.filterwarnings(
    "ignore:.*vocabulary.spm:pytest.PytestUnraisableExceptionWarning"
)
@pytest.mark.parametrize("scheme", ["int8", None])
def test_configs_of_a_preset_are_enough_for_lora_on_codes(preset, kerasmem, scheme):
    line = "estimate preset --batch-size 2 --input-shape 8 --input-shape 8 --lora 4"
    line += " --jit off --optimizer adam --json"
    found = kerasmem(f"{line} --quantize {scheme}" if scheme else line).json
    if scheme:
        preset = km.compress(preset, km.Quantize(scheme)).model
    preset.backbone.enable_lora(4)
    shapes = {"padding_mask": (8,), "token_ids": (8,)}
    options = {"optimizer": "adam", "jit_compile": False, "input_shape": shapes}
    expected = km.estimate_memory(preset, 2, **options)
    assert found.pop("model") == "preset"
    told = MemoryEstimate.from_json(json.dumps(found))
    assert told.peak_bytes == expected.peak_bytes
    assert told.by_category() == expected.by_category()
    # Keras numbers layers of one kind anew for each model.
    layers = [sorted(each.by_layer().values()) for each in (told, expected)]
    assert layers[0] == layers[1]
    trained = sum(4 * math.prod(v.shape) for v in preset.trainable_variables)
    assert trained < 4 * preset.count_params() / 2
    assert 2 * trained <= told.by_category()["optimizer_state"] <= 2 * trained + 64


@pytest.mark.one_backend
@pytest.mark.filterwarnings(
    "ignore:.*vocabulary.spm:pytest.PytestUnraisableExceptionWarning"
)
@pytest.mark.parametrize("scheme", ["int8", None])
def test_generation_is_estimated_by_configs_alone(preset, kerasmem, scheme):
    line = "estimate preset --batch-size 64 --generate 16"
    line = f"{line} --quantize {scheme}" if scheme else line
    assert "generate to 16 tokens" in kerasmem(line).out
    found = kerasmem(f"{line} --json").json
    assert found.pop("model") == "preset"
    assert (found["generate"], found["training"]) == (16, False)
    if scheme:
        preset = km.compress(preset, km.Quantize(scheme)).model
    expected = km.estimate_memory(preset, 64, generate=16)
    told = MemoryEstimate.from_json(json.dumps(found))
    assert told.peak_bytes == expected.peak_bytes
    assert told.by_category() == expected.by_category()


@pytest.mark.one_backend
@pytest.mark.filterwarnings(
    "ignore:.*vocabulary.spm:pytest.PytestUnraisableExceptionWarning"
)
def test_a_length_is_that_of_all_open_inputs(preset, kerasmem, refused):
    line = "estimate preset --batch-size 2 --optimizer adam --json"
    found = kerasmem(f"{line} --length 8").json
    other = kerasmem(f"{line} --input-shape 8 --input-shape 8").json
    assert _without_names(found) == _without_names(other)
    assert found["peak_bytes"] < kerasmem(f"{line} --length 64").json["peak_bytes"]
    message = refused(f"{line} --length 8 --input-shape 8 --input-shape 8")
    assert "either --length or --input-shape" in message
    message = refused("estimate model.keras --length 8")
    assert "with inputs of shape [(None, 6)]" in message


def _without_names(estimate):
    """Keras numbers some layers of a model that is opened again."""
    return {**estimate, "parts": [{**p, "layer": None} for p in estimate["parts"]]}


@pytest.mark.one_backend
def test_lora_is_for_models_of_keras_hub(folder, refused):
    assert "--lora with a Sequential" in refused("estimate model.keras --lora 4")


@pytest.mark.one_backend
def test_codes_are_assumed_of_any_file(folder, kerasmem):
    found = kerasmem("estimate model.keras --predict --quantize int8 --json").json
    total = sum(p["nbytes"] for p in found["parts"] if p["category"] == "parameter")
    codes, scales, biases = 6 * 32 + 32 * 3, 4 * (32 + 3), 4 * (32 + 3)
    assert total == codes + scales + biases
