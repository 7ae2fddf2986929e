"""What Keras 2 wrote answers under Keras 3 as it did."""

import json

import h5py
import keras
import numpy as np
import pytest

import kerasmem as km
from kerasmem.graph.values import to_numpy

KINDS = [
    "attention",
    "bidirectional",
    "clustered_bidirectional",
    "clustered_sparse",
    "custom",
    "depthwise",
    "half",
    "hard_sigmoid",
    "lstm",
    "nested",
    "operators",
    "others",
    "pruned",
    "pruned_lstm",
    "quantized",
    "shared",
    "states",
]
ON_EACH = ("custom", "half", "hard_sigmoid", "nested", "operators", "quantized")
"""What becomes other calls of Keras; weights and configs are the same on each."""
CLOSE = {"rtol": 0, "atol": 1e-5}


def outputs(model, x):
    return [to_numpy(y) for y in keras.tree.flatten(model(x, training=False))]


def files(written, kind):
    named = (f"{kind}.h5", f"{kind}.keras", kind)
    return [written / name for name in named if (written / name).exists()]


@pytest.mark.parametrize(
    "kind",
    [
        kind if kind in ON_EACH else pytest.param(kind, marks=pytest.mark.one_backend)
        for kind in KINDS
    ],
)
@pytest.mark.filterwarnings("ignore:.*without rounding")
def test_every_format_answers_as_tf_keras_did(kind, written, recorded, own_layers):
    x, expected = recorded(kind)
    found = files(written, kind)
    assert len(found) >= (1 if kind == "pruned_lstm" else 2)
    for path in found:
        model = km.load_model(path, own_layers)
        for a, b in zip(outputs(model, x), expected, strict=True):
            np.testing.assert_allclose(a, b, **CLOSE, err_msg=path.name)


@pytest.mark.parametrize("kind", ["hard_sigmoid", "operators"])
def test_what_was_converted_is_saved_and_opened_by_stock_keras(
    kind, written, recorded, tmp_path
):
    x, expected = recorded(kind)
    km.save_model(km.load_model(written / f"{kind}.h5"), tmp_path / "m.keras")
    again = keras.models.load_model(tmp_path / "m.keras")
    for a, b in zip(outputs(again, x), expected, strict=True):
        np.testing.assert_allclose(a, b, **CLOSE)


@pytest.mark.parametrize("kind", ["nested"])
def test_what_was_converted_can_be_compressed(kind, written, recorded, tmp_path):
    x, expected = recorded(kind)
    result = km.compress(written / kind, [km.Quantize("int8")])
    result.save(tmp_path / "small.keras")
    small = km.load_model(tmp_path / "small.keras")
    for a, b in zip(outputs(small, x), expected, strict=True):
        assert np.abs(a - b).max() < 0.1 * np.abs(b).max()
    assert any(change.changed for change in result.changes)


@pytest.mark.one_backend
def test_pruned_kernels_keep_their_zeros(written):
    for path in files(written, "pruned"):
        model = km.load_model(path)
        kernels = [layer.kernel for layer in model.layers if hasattr(layer, "kernel")]
        for kernel in map(to_numpy, kernels):
            assert (kernel == 0).sum() == round(kernel.size / 2)
        assert [layer.name for layer in model.layers][:2] == [
            "conv2d",
            "batch_normalization",
        ]


@pytest.mark.one_backend
def test_clustered_kernels_take_the_values_of_the_centroids(written):
    for path in files(written, "clustered"):
        model = km.load_model(path)
        kernels = [layer.kernel for layer in model.layers if hasattr(layer, "kernel")]
        assert [len(np.unique(to_numpy(kernel))) for kernel in kernels] == [4, 4, 4]
    sparse = km.load_model(written / "clustered_sparse.keras")
    dense = to_numpy(sparse.get_layer("dense").kernel)
    assert len(np.unique(dense)) <= 4
    assert 0.1 < (dense == 0).mean() < 0.6


@pytest.mark.one_backend
def test_layers_that_were_frozen_still_are(written):
    for path in files(written, "nested"):
        model = km.load_model(path)
        inner = model.get_layer("middle").get_layer("inner")
        assert not inner.trainable_variables
        assert (
            len(model.trainable_variables) == 6
        )  # gamma, beta, two kernels and biases


def test_loss_and_metrics_come_along_and_the_optimizer_starts_anew(written, recorded):
    x, (y,) = recorded("dense")
    labels = np.array([0, 2])
    loss = -np.log(y[[0, 1], labels]).mean()
    right = (y.argmax(-1) == labels).mean()
    for path in files(written, "dense"):
        model = km.load_model(path)
        found = model.evaluate(x, labels, verbose=0, return_dict=True)
        assert found["loss"] == pytest.approx(loss, rel=1e-5)
        assert int(model.optimizer.iterations) == 0
        assert not km.load_model(path, compile=False).compiled
        if path.suffix != ".h5":
            assert found["accuracy"] == right


@pytest.mark.one_backend
def test_a_float_model_is_what_remains_of_quantization_aware_training(written):
    with pytest.warns(km.errors.KerasMemWarning, match="without rounding"):
        model = km.load_model(written / "quantized.h5")
    names = {type(layer).__name__ for layer in model.layers}
    assert names == {
        "InputLayer",
        "Conv2D",
        "BatchNormalization",
        "ReLU",
        "DepthwiseConv2D",
        "Add",
        "Flatten",
        "Dense",
    }


@pytest.mark.one_backend
def test_slashes_in_names_are_replaced(written):
    for path in files(written, "states"):
        model = km.load_model(path)
        assert model.name == "a_b"
        assert model.get_layer("logits_of_two").units == 2


def test_a_model_in_a_layer_is_converted_too(tmp_path):
    """Written by hand: a TimeDistributed around a Sequential."""
    inner = {
        "class_name": "Sequential",
        "config": {
            "name": "step",
            "layers": [
                {
                    "class_name": "Dense",
                    "config": {
                        "name": "dense",
                        "units": 2,
                        "activation": "hard_sigmoid",
                        "batch_input_shape": [None, 4],
                    },
                }
            ],
        },
    }
    outer = {"name": "steps", "layer": inner, "batch_input_shape": [None, 3, 4]}
    layers = [{"class_name": "TimeDistributed", "config": outer}]
    config = {"class_name": "Sequential", "config": {"name": "m", "layers": layers}}
    random = np.random.default_rng(0)
    kernel, bias = random.normal(size=(4, 2)), random.normal(size=2)
    with h5py.File(tmp_path / "m.h5", "w") as file:
        file.attrs["keras_version"] = "2.6.0"
        file.attrs["model_config"] = json.dumps(config)
        group = file.create_group("model_weights")
        group.attrs["layer_names"] = [b"steps"]
        steps = group.create_group("steps")
        steps.attrs["weight_names"] = [b"steps/kernel:0", b"steps/bias:0"]
        steps["steps/kernel:0"], steps["steps/bias:0"] = kernel, bias
    x = random.normal(size=(2, 3, 4)).astype("float32")
    (found,) = outputs(km.load_model(tmp_path / "m.h5"), x)
    np.testing.assert_allclose(
        found, np.clip(0.2 * (x @ kernel + bias) + 0.5, 0, 1), **CLOSE
    )
