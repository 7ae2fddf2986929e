"""Models that are made around a backbone of KerasHub, or of its layers."""

import keras
import numpy as np
import pytest

import kerasmem as km
from kerasmem.errors import ConfigError
from kerasmem.graph.clone import clone
from kerasmem.graph.layers import sublayers
from kerasmem.graph.values import to_numpy
from tests.keras_hub.families import FAMILIES, LENGTH, apart, samples
from tests.masked import called

SHAPES = {"token_ids": (LENGTH,), "padding_mask": (LENGTH,)}


def learner(task):
    """Return the backbone of a task with a head whose logits are never whole."""
    backbone = task.backbone
    inputs = {name: keras.Input((None,), dtype="int32", name=name) for name in SHAPES}
    head = km.layers.ChunkedVocabulary(backbone)
    model = keras.Model(inputs, head(backbone(inputs)))
    loss = km.layers.ChunkedCrossentropy()
    model.compile(km.optimizers.Adam8bit(0.01), loss, jit_compile=False)
    return model


def with_lora(name, scheme):
    task = FAMILIES[name]()
    if scheme is not None:
        task = km.compress(task, km.Quantize(scheme)).model
    task.backbone.enable_lora(2)
    return task


@pytest.mark.parametrize(("name", "scheme"), [("Gemma", "int4"), ("Llama3", None)])
def test_it_trains_rematerialized_and_its_task_has_the_weights(name, scheme, tmp_path):
    keras.utils.set_random_seed(1)
    task = with_lora(name, scheme)
    model = learner(task)
    x = samples(task)
    y = x["token_ids"]
    before = task(x)
    lean = km.rematerialize(model, segments=2, input_shape=SHAPES)
    losses = [
        [float(each.train_on_batch(x, y, return_dict=True)["loss"]) for _ in range(3)]
        for each in (lean, clone(model))
    ]
    np.testing.assert_allclose(*losses, rtol=1e-4)
    assert losses[0][-1] < losses[0][0]
    np.testing.assert_array_equal(to_numpy(task(x)), to_numpy(before))

    model.set_weights(lean.get_weights())
    after = to_numpy(task(x))
    assert np.abs(after - to_numpy(before)).max() > 1e-3
    np.testing.assert_allclose(to_numpy(lean(x)), after, atol=1e-5)
    km.save_model(lean, tmp_path / "lean.keras")
    loaded = km.load_model(tmp_path / "lean.keras", compile=False)
    if scheme is not None:  # floats are written with the sum in them
        assert len(loaded.weights) == len(model.weights)
        assert len(loaded.trainable_weights) == len(model.trainable_weights)
    np.testing.assert_allclose(to_numpy(loaded(x)), after, atol=1e-5)


@pytest.mark.one_backend
def test_a_backbone_of_a_quantized_task_is_a_model_of_its_own(tmp_path):
    task = km.compress(FAMILIES["Bert"](), km.Quantize("int8")).model
    x = samples(task)
    found = called(task.backbone, x)
    copy = clone(task.backbone)
    assert type(copy) is type(task.backbone)
    assert apart(called(copy, x), found) == 0
    km.save_model(task.backbone, tmp_path / "backbone.keras")
    loaded = km.load_model(tmp_path / "backbone.keras")
    assert apart(called(loaded, x), found) < 1e-6


@pytest.mark.one_backend
@pytest.mark.parametrize("name", ["Gemma", "Mixtral"])
def test_a_model_of_its_layers_is_copied_compressed_and_saved(name, tmp_path):
    policy = keras.DTypePolicy("float32")  # as a preset gives it
    config = FAMILIES[name]().backbone.get_config()
    backbone = type(FAMILIES[name]().backbone).from_config({**config, "dtype": policy})
    flat = keras.Model(backbone.input, backbone.output)
    x = samples(flat)
    found = called(flat, x)
    assert apart(called(clone(flat), x), found) == 0
    small = km.compress(flat, km.Quantize("int8")).model
    assert apart(called(small, x), found) < 0.03
    km.save_model(small, tmp_path / "small.keras")
    loaded = km.load_model(tmp_path / "small.keras")
    np.testing.assert_allclose(called(loaded, x), called(small, x), atol=1e-5)
    km.save_model(flat, tmp_path / "flat.keras")
    # What tells all arguments needs nobody to read it.
    loaded = keras.models.load_model(tmp_path / "flat.keras")
    np.testing.assert_allclose(called(loaded, x), found, atol=1e-6)


@pytest.mark.one_backend
def test_a_model_without_a_table_is_no_head():
    model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(2)])
    with pytest.raises(ConfigError, match="a backbone with a `token_embedding`"):
        km.layers.ChunkedVocabulary(model)


def test_layers_have_the_same_order_on_all_backends():
    """Files give the number of a layer, and KerasHub tracks layers otherwise on torch.

    OPT's table is an attribute of the backbone and of the layer `embeddings`.
    """
    names = [layer.name for layer in sublayers(FAMILIES["OPT"]())]
    assert names[:5] == [
        *("opt_causal_lm", "opt_backbone", "padding_mask", "token_ids", "layer_norm")
    ]
    assert names[-3:] == ["token_embedding", "embeddings", "position_embedding"]
