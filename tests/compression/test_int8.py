"""int8 weights in every kind of layer: right, small, and reloaded right."""

import gc
import weakref

import keras
import numpy as np
import pytest

from kerasmem.compression.compress import compress
from kerasmem.compression.measure import measure
from kerasmem.compression.quantize import Quantize
from kerasmem.compression.quantize.owners import quantized_variables
from kerasmem.errors import ConfigError, ModelError
from kerasmem.graph.activations import layer_activations
from kerasmem.graph.clone import clone
from kerasmem.graph.kernels import is_kernel, reduced_axes
from kerasmem.graph.layers import weights
from kerasmem.graph.values import to_numpy
from tests.models import KINDS, L, chain, from_origin, in_place

ALL = pytest.mark.parametrize("kind", KINDS.values(), ids=KINDS.keys())


def outputs(model, inputs):
    return to_numpy(model(inputs, training=False))


def rounded(kernel, axes):
    """An independent int8: channel by channel, with Python's own arithmetic."""
    channels = [i for i in range(kernel.ndim) if i not in axes]
    result = np.zeros_like(kernel)
    for index in np.ndindex(*[kernel.shape[i] for i in channels]):
        place = [slice(None)] * kernel.ndim
        for axis, i in zip(channels, index, strict=True):
            place[axis] = i
        channel = kernel[tuple(place)]
        scale = np.float32(max(abs(float(v)) for v in channel.ravel()) / 127) or 1
        codes = [round(float(v) / float(scale)) for v in channel.ravel()]
        result[tuple(place)] = (np.array(codes) * scale).reshape(channel.shape)
    return result


@ALL
def test_an_int8_model_computes_what_a_model_with_rounded_weights_computes(
    kind, origin
):
    model, inputs = kind.make(), kind.inputs()
    exact = outputs(model, inputs)
    small, reference = from_origin(model, origin), clone(model)
    for weight in weights(reference):
        if is_kernel(weight):
            kernel = to_numpy(weight.variable)
            weight.variable.assign(rounded(kernel, reduced_axes(weight)))
    changes = in_place(Quantize("int8"), small)
    assert sum(change.changed for change in changes) == kind.kernels
    found, expected = outputs(small, inputs), outputs(reference, inputs)
    np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-5)
    assert 0 < np.linalg.norm(found - exact) < 0.03 * np.linalg.norm(exact)


@pytest.mark.parametrize(
    ("equation", "given", "output"),
    [
        ("abc,cd->abd", (4, 6), (None, 5)),
        ("abc,cde->abde", (4, 6), (None, 5, 3)),
        ("abc,cde->adbe", (4, 6), (5, None, 3)),
        ("abde,dec->abc", (4, 2, 3), (None, 7)),
        ("...bc,bcd->...d", (4, 6), (3,)),
        ("abc,bcd->abd", (4, 6), (4, 5)),  # a kernel for each place
        ("abc,bd->abcd", (4, 6), (4, 6, 5)),  # nothing is summed
    ],
)
def test_scaled_outputs_are_those_of_scaled_codes(equation, given, output):
    layer = L.EinsumDense(equation, output, bias_axes=equation[-1], activation="tanh")
    model = chain(given, layer)
    in_place(Quantize("int8"), model)
    x = np.random.default_rng(0).normal(size=(2, *given)).astype("float32")
    kernel = to_numpy(model.layers[-1].kernel)
    expected = np.tanh(np.einsum(equation, x, kernel) + to_numpy(layer.bias))
    np.testing.assert_allclose(outputs(model, x), expected, rtol=1e-5, atol=1e-6)


@ALL
def test_an_int8_model_is_saved_loaded_and_copied_without_a_difference(kind, tmp_path):
    model, inputs = kind.make(), kind.inputs()
    in_place(Quantize("int8"), model)
    expected = outputs(model, inputs)
    model.save(tmp_path / "once.keras")
    loaded = keras.models.load_model(tmp_path / "once.keras")
    loaded.save(tmp_path / "twice.keras")
    again = keras.models.load_model(tmp_path / "twice.keras")
    for copy in (loaded, again, clone(again)):
        np.testing.assert_array_equal(outputs(copy, inputs), expected)
        assert len(quantized_variables(copy)) == kind.kernels


@ALL
def test_int8_weights_really_are_int8_and_the_float_ones_are_gone(kind):
    model = kind.make()
    kernels = [w for w in weights(model) if is_kernel(w)]
    sizes = sum(w.size for w in kernels)
    alive = [weakref.ref(w.variable) for w in kernels]
    # JAX arrays take no weak reference; there the variable stands for its value.
    if keras.backend.backend() != "jax":
        alive += [weakref.ref(w.variable.value) for w in kernels]
    del kernels
    in_place(Quantize("int8"), model)
    gc.collect()
    assert not any(reference() is not None for reference in alive)
    codes = [v for v in model.weights if v.dtype == "int8"]
    assert sum(int(np.prod(v.shape)) for v in codes) == sizes


def test_the_rows_of_a_table_are_scaled_one_by_one():
    model = chain((4,), L.Embedding(5, 3), dtype="int32")
    model.layers[-1].embeddings.assign(10.0 ** np.arange(5)[:, None] * np.ones((5, 3)))
    in_place(Quantize("int8"), model)
    found = outputs(model, np.array([[0, 4, 1, 3]], "int32"))
    np.testing.assert_allclose(found[0, :, 0], [1, 1e4, 10, 1e3], rtol=1e-6)


def test_an_int8_model_trains_on_in_what_is_still_float():
    model = chain((6,), L.Dense(5, activation="relu"), L.Dense(2))
    in_place(Quantize("int8"), model)
    codes = [to_numpy(v.codes) for v in quantized_variables(model)]
    model.compile("sgd", "mse")
    x = np.random.default_rng(0).normal(size=(32, 6)).astype("float32")
    history = model.fit(x, x[:, :2] + 3, epochs=3, verbose=0).history["loss"]
    assert history[-1] < history[0]
    assert len(model.trainable_variables) == 2
    for before, variable in zip(codes, quantized_variables(model), strict=True):
        np.testing.assert_array_equal(before, to_numpy(variable.codes))


@pytest.mark.parametrize("policy", ["mixed_bfloat16", "bfloat16", "mixed_float16"])
def test_the_compute_dtype_of_a_layer_is_kept(policy, tmp_path):
    inputs = keras.Input((6,))
    model = keras.Model(inputs, L.Dense(4, dtype=policy)(inputs))
    x = np.random.default_rng(0).normal(size=(3, 6)).astype("float32")
    expected = model(x)
    in_place(Quantize("int8"), model)
    found = model(x)
    assert found.dtype == expected.dtype
    difference = to_numpy(keras.ops.cast(found - expected, "float32"))
    assert np.abs(difference).max() < 0.05
    model.save(tmp_path / "m.keras")
    again = keras.models.load_model(tmp_path / "m.keras")(x)
    assert keras.ops.all(again == found)


def test_jit_and_graph_predict_as_eager_does():
    model = KINDS["conv2d"].make()
    inputs = KINDS["conv2d"].inputs()
    in_place(Quantize("int8"), model)
    for jit in (False, keras.backend.backend() != "torch"):
        model.compile(jit_compile=jit)
        np.testing.assert_allclose(
            model.predict(inputs, verbose=0), outputs(model, inputs), atol=1e-5
        )


def test_a_frozen_inner_layer_stays_frozen_when_it_is_loaded(tmp_path):
    model = chain((5, 6), L.Bidirectional(L.LSTM(4)))
    model.layers[-1].forward_layer.trainable = False
    in_place(Quantize("int8"), model)
    assert len(model.trainable_variables) == 1
    model.save(tmp_path / "m.keras")
    loaded = keras.models.load_model(tmp_path / "m.keras")
    trainable = [v.path.split("/")[-3:] for v in loaded.trainable_variables]
    assert len(trainable) <= 1, trainable


def test_a_stateful_layer_goes_on_where_it_was():
    inputs = keras.Input(batch_shape=(3, 5, 6))
    model = keras.Model(inputs, L.LSTM(4, stateful=True)(inputs))
    x = np.random.default_rng(0).normal(size=(3, 5, 6)).astype("float32")
    expected = [outputs(model, x) for _ in range(2)]
    model.layers[-1].reset_states()
    in_place(Quantize("int8"), model)
    found = [outputs(model, x) for _ in range(2)]
    for a, b in zip(found, expected, strict=True):
        np.testing.assert_allclose(a, b, atol=0.02)
    assert np.abs(found[0] - found[1]).max() > 0.005


def inspected(model):
    return sum(layer.parameters for layer in layer_activations(model))


@pytest.mark.one_backend
def test_every_weight_is_accounted_for():
    model = chain((6, 6, 3), L.Conv2D(4, 3), L.BatchNormalization())
    changes = in_place(Quantize("int8"), model)
    assert [(c.weight.split("/")[-1], c.changed, c.detail) for c in changes] == [
        ("kernel", True, "int8 with 4 scales"),
        ("bias", False, "is not a kernel or embedding table"),
        ("gamma", False, "is not a kernel or embedding table"),
        ("beta", False, "is not a kernel or embedding table"),
        ("moving_mean", False, "is not a kernel or embedding table"),
        ("moving_variance", False, "is not a kernel or embedding table"),
    ]
    assert (changes[0].before_bytes, changes[0].after_bytes) == (432, 108 + 16)
    (parameters,) = {measure(model).parameters, inspected(model)}
    assert parameters == 108 + 4 + 4 * 4


@pytest.mark.one_backend
def test_a_model_without_float_kernels_is_an_error():
    model = chain((4,), L.LayerNormalization())
    whole = r"nothing to quantize: none of its 2 weights is .* or embedding table\.$"
    with pytest.raises(ModelError, match=whole):
        in_place(Quantize("int8"), model)
    model = chain((4,), L.Dense(2))
    whole = r"quantize: all float kernels and embedding tables are excluded\.$"
    with pytest.raises(ModelError, match=whole):
        in_place(Quantize("int8", exclude="Dense"), model)
    in_place(Quantize("int8"), model)
    with pytest.raises(
        ModelError, match="nothing to quantize.*quantized already.*km.dequantize"
    ):
        in_place(Quantize("int8"), model)


@pytest.mark.one_backend
def test_weights_with_nan_are_an_error():
    model = chain((4,), L.Dense(2))
    model.layers[-1].kernel.assign(np.full((4, 2), np.nan))
    with pytest.raises(
        ModelError, match="Quantization needs finite weights. Received: NaN or inf"
    ):
        in_place(Quantize("int8"), model)


@pytest.mark.one_backend
def test_an_unknown_scheme_is_an_error():
    with pytest.raises(ConfigError, match=r"one of int8, .* Received: scheme='int5'"):
        Quantize("int5")


@pytest.mark.one_backend
@pytest.mark.parametrize("scheme", ["int8", "int4", "float16"])
def test_a_kernel_without_entries_is_stored(scheme):
    empty = L.EinsumDense("ab,bc->ac", output_shape=(0,))
    model = keras.Sequential([keras.Input((8,)), L.Dense(8), empty])
    changes = {c.weight: c for c in compress(model, Quantize(scheme)).changes}
    assert changes[f"{empty.name}/kernel"].detail.startswith(scheme)
