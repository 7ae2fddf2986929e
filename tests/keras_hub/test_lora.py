"""LoRA on backbones of KerasHub, on floats and on codes."""

import keras
import keras_hub
import numpy as np
import pytest

import kerasmem as km
from kerasmem.graph.clone import clone
from kerasmem.graph.values import to_numpy
from kerasmem.memory.measure import COUNTING_ALLOCATOR
from kerasmem.processes import ON_THE_CPU, run_in_child
from tests.keras_hub.families import FAMILIES, samples, shapes, targets

RANK = 2
PLAIN = {"metrics": [], "weighted_metrics": [], "jit_compile": False}
SCHEMES = [None, "int8", "int4"]


def with_lora(name, scheme):
    keras.utils.set_random_seed(1)
    model = FAMILIES[name]()
    if scheme is not None:
        model = km.compress(model, km.Quantize(scheme)).model
    model.backbone.enable_lora(RANK)
    return model


def trained(model, steps=3):
    """Train all that is to be trained, and return the losses."""
    model.compile(km.optimizers.Adam8bit(0.01), "mse", **PLAIN)
    x = samples(model)
    y = targets(model, x)
    return [float(model.train_on_batch(x, y)) for _ in range(steps)]


def names(model):
    return sorted(weight.name for weight in model.trainable_weights)


@pytest.mark.parametrize("scheme", SCHEMES)
@pytest.mark.parametrize("name", ["Gemma", "GPT2"])
def test_lora_trains_is_saved_and_merged(name, scheme, tmp_path):
    model = with_lora(name, scheme)
    x = samples(model)
    before = to_numpy(model(x))
    only = names(model)
    assert {"lora_kernel_a", "lora_kernel_b"} <= {*only}
    assert {*only} <= {"lora_kernel_a", "lora_kernel_b", "bias"}
    frozen = [np.array(to_numpy(w)) for w in model.non_trainable_weights]
    losses = trained(model)
    assert losses[-1] < losses[0]
    for weight, value in zip(model.non_trainable_weights, frozen, strict=True):
        np.testing.assert_array_equal(to_numpy(weight), value)
    after = to_numpy(model(x))
    assert np.abs(after - before).max() > 1e-3

    copy = clone(model)
    assert names(copy) == only
    np.testing.assert_allclose(to_numpy(copy(x)), after, atol=1e-6)

    km.save_model(model, tmp_path / "a.keras")
    loaded = km.load_model(tmp_path / "a.keras", compile=False)
    np.testing.assert_allclose(to_numpy(loaded(x)), after, atol=1e-5)
    if scheme is not None:  # codes cannot take the sum
        assert names(loaded) == only
        assert trained(loaded, 1)[0] < losses[0]
        np.testing.assert_allclose(to_numpy(km.dequantize(model)(x)), after, atol=1e-5)
        km.save_model(km.dequantize(model), tmp_path / "merged.keras")
        loaded = km.load_model(tmp_path / "merged.keras", compile=False)
        np.testing.assert_allclose(to_numpy(loaded(x)), after, atol=1e-5)
    assert not any("lora" in weight.name for weight in loaded.weights)
    assert type(loaded) is type(FAMILIES[name]())


@pytest.mark.parametrize("scheme", SCHEMES)
def test_what_is_computed_again_trains_the_same_lora(scheme):
    plain = with_lora("Gemma", scheme)
    given = shapes(plain, samples(plain))
    lean = km.rematerialize(plain, segments=2, input_shape=given)
    assert names(lean) == names(plain)
    np.testing.assert_allclose(trained(lean), trained(plain), rtol=1e-4)


BATCH, LENGTH = 64, 32
WAYS = [(None, False), (None, True), ("int8", False)]


def compiled(scheme, lean):
    backbone = keras_hub.models.GemmaBackbone(
        vocabulary_size=500,
        num_layers=4,
        num_query_heads=4,
        num_key_value_heads=1,
        head_dim=32,
        hidden_dim=128,
        intermediate_dim=256,
    )
    model = keras_hub.models.GemmaCausalLM(backbone, preprocessor=None)
    model = km.compress(model, km.Quantize(scheme)).model if scheme else model
    model.backbone.enable_lora(RANK)
    x = samples(model, BATCH, LENGTH)
    if lean:
        model = km.rematerialize(model, segments=2, input_shape=shapes(model, x))
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(km.optimizers.Adam8bit(), loss, **PLAIN)
    return model, x


def measured(ways):
    """Return the peak of a second step of each way; runs in a child."""
    import tensorflow as tf

    allocator = tf.config.experimental
    peaks = []
    for scheme, lean in ways:
        model, x = compiled(scheme, lean)
        y, held = x["token_ids"], model.variables
        before = allocator.get_memory_info("CPU:0")["current"]
        before -= sum(np.asarray(each).nbytes for each in held)
        model.train_on_batch(x, y)
        allocator.reset_memory_stats("CPU:0")
        model.train_on_batch(x, y)
        peaks.append(allocator.get_memory_info("CPU:0")["peak"] - before)
        keras.utils.clear_session()
        del model
    return peaks


@pytest.mark.slow
@pytest.mark.one_backend  # the others' allocators count nothing on a CPU
def test_an_estimate_with_lora_comes_near_the_peak():
    true = run_in_child(
        f"{__name__}:measured",
        WAYS,
        backend="tensorflow",
        environment={**ON_THE_CPU, **COUNTING_ALLOCATOR},
    )
    for way, peak in zip(WAYS, true, strict=True):
        model, x = compiled(*way)
        given = shapes(model, x)
        found = km.estimate_memory(model, BATCH, input_shape=given, device="cpu")
        assert found.method == "analytic"
        assert found.peak_bytes == pytest.approx(peak, rel=0.1), way
