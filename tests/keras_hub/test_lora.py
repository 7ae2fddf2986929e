"""LoRA on backbones of KerasHub, on floats and on codes."""

import keras
import numpy as np
import pytest

import kerasmem as km
from kerasmem.graph.clone import clone
from kerasmem.graph.values import to_numpy
from tests.keras_hub.families import FAMILIES, samples, shapes, targets

RANK = 2
PLAIN = {"metrics": [], "weighted_metrics": [], "jit_compile": False}


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


@pytest.mark.parametrize(
    ("name", "scheme"),
    [
        ("Gemma", None),
        ("Gemma", "int8"),
        pytest.param("GPT2", "int8", marks=pytest.mark.one_backend),
    ],
)
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


@pytest.mark.one_backend
@pytest.mark.parametrize("scheme", [None, "int4"])
def test_what_is_computed_again_trains_the_same_lora(scheme):
    plain = with_lora("Gemma", scheme)
    given = shapes(plain, samples(plain))
    lean = km.rematerialize(plain, segments=2, input_shape=given)
    assert names(lean) == names(plain)
    np.testing.assert_allclose(trained(lean), trained(plain), rtol=1e-4)


@pytest.mark.one_backend
def test_a_reloaded_model_writes_and_reads_files_of_adapters(tmp_path):
    model = with_lora("Gemma", "int8")
    x = samples(model)
    before = to_numpy(model(x))
    trained(model)
    model.backbone.save_lora_weights(str(tmp_path / "a.lora.h5"))
    after = to_numpy(model(x))
    km.save_model(model, tmp_path / "a.keras")
    loaded = km.load_model(tmp_path / "a.keras", compile=False)
    for layer in loaded._flatten_layers():
        if getattr(layer, "lora_enabled", False):
            layer.lora_kernel_b.assign(0 * layer.lora_kernel_b)
    loaded.backbone.save_lora_weights(str(tmp_path / "zero.lora.h5"))
    found = {}
    for name in ("a", "zero", "a"):
        loaded.backbone.load_lora_weights(str(tmp_path / f"{name}.lora.h5"))
        found[name] = to_numpy(loaded(x))
    np.testing.assert_allclose(found["a"], after, atol=1e-5)
    np.testing.assert_allclose(found["zero"], before, atol=1e-5)
