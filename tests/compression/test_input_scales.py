"""Weights of large inputs in finer steps (AWQ)."""

import keras
import numpy as np
import pytest

import kerasmem as km
from kerasmem.compression.quantize.coding import Coding
from kerasmem.compression.quantize.on_data.moments import Moments
from kerasmem.compression.quantize.on_data.rounding import input_scales
from kerasmem.compression.quantize.owners import quantized_variables
from kerasmem.compression.quantize.variable import QuantizedVariable
from kerasmem.errors import ConfigError
from kerasmem.files import load_model
from kerasmem.graph.values import to_numpy
from tests.compression.test_adaptive_rounding import X, network
from tests.models import L

CODINGS = [
    Coding("int8", (0,), by_input=True),
    Coding("int4", (0,), by_input=True),
    Coding("int4", (0,), "group", 4, by_input=True),
    Coding("int8", (0,), "group", 4, by_input=True),
    Coding("int8", (0,), "tensor", by_input=True),
    Coding("int4", (0,), symmetric=False, by_input=True),
]


def uneven(size=40, outputs=8, samples=500):
    """Return samples some of whose inputs are large, and a kernel."""
    random = np.random.default_rng(size)
    sizes = np.where(np.arange(size) % 8 == 0, 20.0, 1.0)
    x = random.normal(size=(samples, size)) * sizes
    return x.astype("float32"), random.normal(size=(size, outputs)).astype("float32")


def dense(kernel):
    layer = L.Dense(kernel.shape[1], use_bias=False)
    layer.build((None, len(kernel)))
    layer.kernel.assign(kernel)
    return layer


def error(coding, x, kernel, scales):
    coded = coding.encode(kernel, input_scales=scales)
    return np.square(x @ (coding.decoded(coded, kernel.shape) - kernel)).sum()


@pytest.mark.parametrize("coding", CODINGS, ids=str)
def test_codes_are_those_of_the_weights_by_their_scales(coding):
    kernel = np.random.default_rng(1).normal(size=(10, 6)).astype("float32")
    scales = np.random.default_rng(2).uniform(0.5, 2, (10, 1)).astype("float32")
    coded = coding.encode(kernel, input_scales=scales)
    plain = Coding(**{**vars(coding), "by_input": False})
    usual = plain.decoded(plain.encode(kernel / scales), kernel.shape)
    np.testing.assert_allclose(
        coding.decoded(coded, kernel.shape), usual * scales, rtol=1e-5
    )
    shapes = [part[0] for part in coding.stored(kernel.shape).parts]
    assert shapes == [part.shape for part in coded.parts]
    assert coding.nbytes(kernel.shape) == sum(part.nbytes for part in coded.parts)
    variable = QuantizedVariable(
        coding, keras.Variable(kernel, name="kernel"), "float32", coded
    )
    part = variable.decoded(*variable.tensors(None, (1, 2, 3)))
    np.testing.assert_allclose(to_numpy(part), (usual * scales)[:, 2:5], rtol=1e-5)
    variable.assign(2 * kernel)
    np.testing.assert_allclose(to_numpy(variable.value), 2 * usual * scales, rtol=1e-5)


@pytest.mark.one_backend
@pytest.mark.parametrize("granularity", ["channel", "group"])
def test_the_chosen_power_leaves_no_more_error_than_none(granularity):
    coding = Coding("int4", (0,), granularity, 10, by_input=True)
    x, kernel = uneven()
    moments = Moments(*[(x.T @ x)[None].astype("float64")] * 2, len(x))
    scales = input_scales(dense(kernel), kernel, coding, moments)
    assert scales.shape == (40, 1)
    large = np.arange(40) % 8 == 0
    # Finer steps where inputs are large.
    assert scales[large].max() < 0.7 * scales[~large].min()
    ones = np.ones((40, 1), "float32")
    assert error(coding, x, kernel, scales) < 0.6 * error(coding, x, kernel, ones)
    even = np.random.default_rng(0).normal(size=x.shape)
    moments = Moments(*[(even.T @ even)[None]] * 2, len(x))
    alike = input_scales(dense(kernel), kernel, coding, moments)
    best, usual = (error(coding, even, kernel, s) for s in (alike, ones))
    assert best <= 1.001 * usual
    alone = Moments(*[np.eye(40)[None]] * 2, 10**6)
    assert input_scales(dense(kernel), kernel, coding, alone) is None


@pytest.mark.one_backend
def test_inputs_that_are_always_zero_do_no_harm():
    x, kernel = uneven()
    x[:, 3] = 0
    for samples in (x, np.zeros_like(x)):
        moments = Moments(*[(samples.T @ samples)[None].astype("f8")] * 2, len(x))
        scales = input_scales(dense(kernel), kernel, CODINGS[1], moments)
        assert (scales is None) == (not samples.any())
        assert scales is None or (np.isfinite(scales) & (scales > 0)).all()


def scaled(model):
    return [v for v in quantized_variables(model) if v.coding.by_input]


@pytest.mark.parametrize("granularity", ["channel", "group"])
@pytest.mark.parametrize("rounding", ["nearest", "gptq"])
def test_a_model_keeps_more_of_its_answers(rounding, granularity, tmp_path):
    keras.utils.set_random_seed(7)
    x, _ = uneven(samples=300)
    layers = [L.Dense(24, "relu"), L.Dense(5)]
    model = keras.Sequential([keras.Input((40,)), *layers])
    exact, before = to_numpy(model(x[200:])), model.get_weights()
    size = {"group_size": 20} if granularity == "group" else {}
    lost = {}
    for scales in ("max", "awq"):
        own = km.Quantize(
            "int4", rounding=rounding, scales=scales, granularity=granularity, **size
        )
        result = km.compress(model, own, data=x[:200])
        lost[scales] = np.square(to_numpy(result.model(x[200:])) - exact).mean()
    # GPTQ makes up for much of it already: where it does, there are no such scales.
    assert lost["awq"] < (1.05 if rounding == "gptq" else 0.9) * lost["max"]
    details = [c.detail for c in result.changes if c.changed]
    assert all(each.endswith("by GPTQ") == (rounding == "gptq") for each in details)
    if rounding == "nearest":
        assert "scales of inputs" in details[0]
    result.save(tmp_path / "small.keras")
    opened = load_model(tmp_path / "small.keras")
    np.testing.assert_array_equal(
        to_numpy(opened(x[200:])), to_numpy(result.model(x[200:]))
    )
    floats = km.dequantize(result.model)
    np.testing.assert_allclose(
        to_numpy(floats(x)), to_numpy(result.model(x)), rtol=1e-4, atol=1e-4
    )
    for weight, own in zip(model.get_weights(), before, strict=True):
        np.testing.assert_array_equal(weight, own)


def attention():
    keras.utils.set_random_seed(4)
    inputs = keras.Input((6, 16))
    x = L.MultiHeadAttention(2, 8)(inputs, inputs)
    return keras.Model(inputs, L.EinsumDense("abc,cd->abd", (None, 8))(x))


@pytest.mark.parametrize(("make", "count"), [(network, 4), (attention, 5)])
def test_in_many_bits_layers_of_every_kind_make_the_same(make, count):
    model = make()
    x = X[:64]
    if make is attention:
        x = np.random.default_rng(5).normal(size=(64, 6, 16)).astype("float32")
    result = km.compress(model, km.Quantize("int8", scales="awq"), data=x)
    assert 1 <= len(scaled(result.model)) <= count
    assert sum(c.changed for c in result.changes) == count
    want = to_numpy(model(x))
    np.testing.assert_allclose(
        to_numpy(result.model(x)), want, atol=0.05 * np.abs(want).max()
    )


def test_choices_that_do_not_fit_are_errors():
    for wrong in ({"scheme": "int8-dynamic"}, {"scheme": "int4", "symmetric": False}):
        with pytest.raises(ConfigError, match="scales='awq' only for symmetric"):
            km.Quantize(**wrong, scales="awq")
    with pytest.raises(
        ConfigError,
        match="^scales='awq' needs samples. Received: data=None. Next: pass data=x",
    ):
        km.compress(network(), km.Quantize("int4", scales="awq"))
