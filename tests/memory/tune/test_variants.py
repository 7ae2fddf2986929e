"""Which options are tried, and what a model is asked with each."""

import keras
import pytest
from keras import layers

from kerasmem.errors import ConfigError
from kerasmem.extras.tune.variants import Variant, changed, variants


def names(request, devices=1):
    return [variant.name for variant in variants(request, devices)]


def test_the_options_are_those_of_the_backend(deep, question, backend):
    passes = ["layout optimizer off", "constant folding off"]
    assert names(question(deep, 8)) == [
        "jit on",
        "mixed_float16",
        "mixed_bfloat16",
        *(passes if backend == "tensorflow" else []),
        "rematerialized",
        "accumulation, 2 batches",
        "accumulation, 4 batches",
    ]


def test_what_the_model_has_already_is_not_tried(question):
    model = keras.Sequential([keras.Input((4,)), layers.Dense(2)])
    model.dtype_policy = keras.dtype_policies.DTypePolicy("mixed_bfloat16")
    model.compile("sgd", "mse")
    found = names(question(model, 3, jit_compile=True))
    assert found[0] == "jit off"
    assert "mixed_bfloat16" not in found
    assert "accumulation, 4 batches" not in found


def test_several_devices_are_tried_where_one_process_can(deep, question, backend):
    found = names(question(deep, 8), devices=2)
    assert ("data parallel, 2 devices" in found) == (backend != "torch")


@pytest.mark.one_backend
def test_accumulation_divides_the_batch_and_leaves_the_models_optimizer(deep, question):
    asked = changed(question(deep, 8), Variant("a", steps_per_update=4))
    assert asked.batch_size == 2
    assert [x.shape for x in asked.inputs] == [(2, 64, 4)]
    assert asked.optimizer.gradient_accumulation_steps == 4
    assert deep.optimizer.gradient_accumulation_steps is None


@pytest.mark.one_backend
def test_float16_scales_its_loss_and_bfloat16_does_not(deep, question):
    half = changed(question(deep, 8), Variant("a", dtype_policy="mixed_float16"))
    assert isinstance(half.optimizer, keras.optimizers.LossScaleOptimizer)
    brain = changed(half, Variant("a", dtype_policy="mixed_bfloat16"))
    assert isinstance(brain.optimizer, keras.optimizers.SGD)
    scaled = changed(half, Variant("a", steps_per_update=2)).optimizer
    assert scaled.inner_optimizer.gradient_accumulation_steps == 2


@pytest.mark.one_backend
@pytest.mark.parametrize(
    ("variant", "text"),
    [
        (Variant("a", steps_per_update=4), "divisible by 4. Received: batch_size=6"),
        (Variant("a", devices=4), "divisible by 4 devices. Received: batch_size=6"),
    ],
)
def test_a_batch_that_does_not_divide_is_refused(deep, question, variant, text):
    with pytest.raises(ConfigError, match=text):
        changed(question(deep, 6), variant)


@pytest.mark.one_backend
def test_an_optimizer_that_accumulates_already_is_left_alone(question):
    model = keras.Sequential([keras.Input((4,)), layers.Dense(2)])
    model.compile(keras.optimizers.SGD(gradient_accumulation_steps=2), "mse")
    with pytest.raises(ConfigError, match="already accumulates 2 batches"):
        changed(question(model, 8), Variant("a", steps_per_update=2))
