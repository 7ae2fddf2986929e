"""Weights rounded up or down as suits what their layer makes of data (AdaRound)."""

from itertools import product

import keras
import numpy as np
import pytest

import kerasmem as km
from kerasmem.compression.quantize.on_data import moments
from kerasmem.compression.quantize.on_data.moments import (
    Moments,
    Sums,
    columns,
    is_product_of_matrices,
    matrices,
    of_matrices,
)
from kerasmem.compression.quantize.on_data.passes import Passes
from kerasmem.compression.quantize.on_data.rounding import adapted_codes
from kerasmem.compression.quantize.owners import quantized_variables
from kerasmem.compression.recipe import apply_technique
from kerasmem.errors import ConfigError, DataError, ModelError
from kerasmem.graph.clone import clone
from kerasmem.graph.layers import sublayers
from kerasmem.graph.values import to_numpy
from tests.models import L, chain, in_place

ADAPTIVE = km.Quantize("int4", rounding="adaptive")


def problem(size, outputs=6, samples=400):
    """Return inputs that go together, as behind a ReLU, and a kernel."""
    random = np.random.default_rng(size)
    mixing = np.eye(size) + 0.7 * random.normal(size=(size, size)) / np.sqrt(size)
    x = np.maximum(random.normal(size=(samples, size)) @ mixing + 0.2, 0)
    return x, random.normal(size=(size, outputs))


def adapted(x, kernel, limit=7):
    """Return the steps of a kernel and its codes."""
    known = Moments((x.T @ x)[None], (x.T @ x)[None], len(x))
    largest = np.abs(kernel).max(axis=0, keepdims=True)
    steps = np.where(largest > 0, largest, limit) / limit * np.ones_like(kernel)
    codes = adapted_codes(known, kernel[None], steps[None], limit)
    return steps, codes[0]


def errors(x, kernel, rounded):
    return np.square(x @ (rounded - kernel)).sum(axis=0)


@pytest.mark.one_backend
def test_it_finds_nearly_the_best_of_all_ways_to_round():
    x, kernel = problem(7)
    steps, codes = adapted(x, kernel)
    nearest = np.rint(kernel / steps)
    down = np.floor(kernel / steps)
    best = np.full(6, np.inf)
    for ups in product((0, 1), repeat=7):
        every = np.where(np.abs(nearest) == 7, nearest, down + np.array(ups)[:, None])
        best = np.minimum(best, errors(x, kernel, every * steps))
    found = errors(x, kernel, codes * steps)
    usual = errors(x, kernel, nearest * steps)
    assert (found <= 1.01 * usual).all()
    assert found.sum() <= 1.2 * best.sum()
    assert found.sum() < 0.9 * usual.sum()


@pytest.mark.one_backend
@pytest.mark.parametrize("samples", [8, 30])
def test_few_samples_do_no_harm_to_others(samples):
    x, kernel = problem(60, samples=samples + 600)
    steps, codes = adapted(x[:samples], kernel)
    nearest = np.rint(kernel / steps) * steps
    found = errors(x[samples:], kernel, codes * steps).sum()
    assert found < 0.98 * errors(x[samples:], kernel, nearest).sum()


@pytest.mark.one_backend
@pytest.mark.parametrize("limit", [7, 127])
def test_outputs_of_new_samples_are_nearer_too(limit):
    x, kernel = problem(60, samples=1200)
    steps, codes = adapted(x[:600], kernel, limit)
    nearest = np.rint(kernel / steps) * steps
    found = errors(x[600:], kernel, codes * steps).sum()
    assert found < 0.7 * errors(x[600:], kernel, nearest).sum()
    assert np.abs(codes - kernel / steps).max() < 1
    assert np.abs(codes).max() == limit


@pytest.mark.one_backend
def test_zeros_and_the_largest_weights_stay():
    x, kernel = problem(20)
    kernel[::2] = 0.0
    kernel[:, 0] = 0.0
    _, codes = adapted(x, kernel)
    np.testing.assert_array_equal(codes[kernel == 0], 0)
    largest = np.abs(kernel[:, 1:]).argmax(axis=0)
    assert (np.abs(codes[largest, np.arange(1, 6)]) == 7).all()


LAYERS = {
    "dense": ((3, 6), lambda: L.Dense(4)),
    "conv1d": ((9, 3), lambda: L.Conv1D(4, 3, strides=2, padding="same")),
    "causal": ((9, 3), lambda: L.Conv1D(4, 3, padding="causal", dilation_rate=2)),
    "conv2d": ((6, 7, 3), lambda: L.Conv2D(4, (3, 2), strides=2)),
    "strides": ((7, 6, 3), lambda: L.Conv2D(4, 3, strides=3, padding="same")),
    "groups": ((6, 6, 4), lambda: L.Conv2D(6, 3, groups=2, padding="same")),
    "dilated": ((7, 7, 2), lambda: L.Conv2D(3, 3, dilation_rate=2)),
    "einsum": ((3, 6), lambda: L.EinsumDense("abc,cde->abde", (None, 2, 5))),
    "two summed": ((3, 4, 2), lambda: L.EinsumDense("abde,dec->abc", (None, 7))),
    "turned": ((3, 6), lambda: L.EinsumDense("abc,dce->abde", (None, 5, 2))),
    "a matrix each": ((4, 6), lambda: L.EinsumDense("abc,bcd->abd", (4, 5))),
    "open": ((2, 3, 6), lambda: L.EinsumDense("...c,cd->...d", (5,))),
    "depthwise1d": ((9, 3), lambda: L.DepthwiseConv1D(3, depth_multiplier=2)),
    "depthwise": ((6, 6, 3), lambda: L.DepthwiseConv2D(3, strides=2, padding="same")),
}
# Keras itself has groups on no CPU of TensorFlow but compiled.
NAMES = [n for n in LAYERS if n != "groups" or keras.backend.backend() != "tensorflow"]


@pytest.mark.parametrize("name", NAMES)
def test_a_layer_is_a_product_of_matrices(name):
    shape, make = LAYERS[name]
    layer = make()
    x = np.random.default_rng(1).normal(size=(2, *shape)).astype("float32")
    exact = to_numpy(layer(x))
    assert is_product_of_matrices(layer)
    kernel = to_numpy(layer.kernel)
    rows, parts = columns(layer, x), matrices(layer, kernel)
    found = np.moveaxis(rows @ parts, 0, 1).reshape(exact.shape)
    np.testing.assert_allclose(found, exact, rtol=1e-4, atol=1e-5)
    np.testing.assert_array_equal(of_matrices(layer, parts), kernel)


def network():
    keras.utils.set_random_seed(3)
    return chain(
        (8, 8, 3),
        L.Conv2D(8, 3, activation="relu"),
        L.DepthwiseConv2D(3, padding="same", activation="relu"),
        L.Conv2D(12, 1, activation="relu"),
        L.Flatten(),
        L.Dense(5),
    )


def pictures(count=96):
    """Return pictures whose neighbors are alike."""
    random = np.random.default_rng(2)
    coarse = random.normal(0.5, size=(count, 2, 2, 3)).repeat(4, 1).repeat(4, 2)
    return (coarse + 0.3 * random.normal(size=(count, 8, 8, 3))).astype("float32")


X = pictures()


class OneBatch(keras.utils.PyDataset):
    def __init__(self, x):
        super().__init__()
        self.x = x

    def __len__(self):
        return 1

    def __getitem__(self, _):
        return (self.x,)


def moments_of(models, layers, data):
    sums = Sums(layers[1:])
    assert list(Passes(models, [layers], data).turns(sums.add)) == [(0,)]
    return sums.pop(0)


def test_moments_are_of_each_sample_however_they_come_in_batches(monkeypatch):
    x = X[:40].repeat(2, 1).repeat(2, 2)
    model = chain((16, 16, 3), L.Conv2D(8, 3))
    models = model, clone(model)
    layers, asked = tuple(each.layers[1] for each in models), []

    def noted(layer, x):
        found = columns(layer, x)
        asked.append(found.shape[1])
        return found

    monkeypatch.setattr(moments, "columns", noted)
    usual, whole = (moments_of(models, layers, data) for data in (x, OneBatch(x)))
    assert usual.rows == whole.rows == 40 * 64
    np.testing.assert_allclose(usual.rounded, whole.rounded, rtol=1e-4)
    np.testing.assert_allclose(usual.mixed, usual.rounded, rtol=1e-4)
    assert set(asked) == {14 * 14}  # of one sample, not of a batch


def codes_of(model):
    """Return the decoded kernels and the scales of a model."""
    stored = [v for layer in sublayers(model) for v in quantized_variables(layer)]
    found = {id(v): v for v in stored}.values()
    return [(to_numpy(v.value), to_numpy(v.scales)) for v in found]


def test_every_layer_makes_less_error_and_so_does_the_model():
    model = network()
    train, test = X[:64], X[64:]
    exact = to_numpy(model(test))
    found, usual = (
        km.compress(model, choice, data=train)
        for choice in (ADAPTIVE, km.Quantize("int4"))
    )
    kernels = [layer.kernel for layer in model.layers if hasattr(layer, "kernel")]
    for (new, scales), (old, same), kernel in zip(
        codes_of(found.model), codes_of(usual.model), kernels, strict=True
    ):
        np.testing.assert_allclose(scales, same, rtol=1e-6)
        assert np.abs(new - old).max() > 0.5 * scales.min()
        assert np.abs(new - to_numpy(kernel)).max() <= 1.001 * scales.max()
    better, worse = (
        [c for c in result.changes if c.weight.endswith("kernel")]
        for result in (found, usual)
    )
    assert all("rounded adaptively" in change.detail for change in better)
    for new, old in zip(better, worse, strict=True):
        assert new.sqnr_db < old.sqnr_db  # of weights it is more, of outputs less
    # The first layer is given the same in both; those behind make up for it.
    assert better[0].output_sqnr_db > worse[0].output_sqnr_db
    left, before = (
        np.square(to_numpy(result.model(test)) - exact).mean()
        for result in (found, usual)
    )
    assert left < 0.7 * before


def test_zeros_of_pruning_stay_and_groups_have_their_own_scales():
    model = network()
    choice = km.Quantize("int4", granularity="group", group_size=9, rounding="adaptive")
    pruned, _ = apply_technique(km.Prune(0.5), model)
    kernels = [to_numpy(x.kernel) for x in pruned.layers if hasattr(x, "kernel")]
    result = km.compress(pruned, choice, data=X[:32])
    for (values, _), kernel in zip(codes_of(result.model), kernels, strict=True):
        assert (values[kernel == 0] == 0).all()
    assert sum(np.count_nonzero(kernel == 0) for kernel in kernels) > 150
    told = [c.detail for c in result.changes if "adaptively" in c.detail]
    assert len(told) == 4


def test_choices_that_do_not_fit_are_errors():
    for wrong in ({"scheme": "float16"}, {"scheme": "int8", "symmetric": False}):
        with pytest.raises(
            ConfigError,
            match="'adaptive' only for symmetric integer codes: 'int8'.*Received",
        ):
            km.Quantize(**wrong, rounding="adaptive")
    with pytest.raises(ConfigError, match="one of nearest, adaptive, gptq"):
        km.Quantize("int8", rounding="up")
    with pytest.raises(
        ConfigError,
        match="^rounding='adaptive' needs samples. Received: data=None. Next: pass",
    ):
        km.compress(network(), ADAPTIVE)
    with pytest.raises(ConfigError, match="rounds weights to nearest. Next"):
        km.quantization_aware(network(), ADAPTIVE)
    loop = chain((5, 3), L.LSTM(4))
    with pytest.raises(ModelError, match="that can be rounded adaptively. Expected"):
        km.compress(loop, ADAPTIVE, data=np.ones((4, 5, 3), "float32"))
    model = network()
    first, last = (to_numpy(layer.kernel) for layer in model.layers[1::4])
    model.layers[5].kernel.assign(last * np.inf)
    with pytest.raises(
        ModelError, match="NaN or infinity in .* entries of '.*/kernel'"
    ):
        in_place(ADAPTIVE, model, X[:32])
    np.testing.assert_array_equal(to_numpy(model.layers[1].kernel), first)
    model = network()
    model.layers[1].bias.assign(np.full(8, np.nan))
    with pytest.raises(
        DataError, match="inputs of layer .* contain NaN or infinity. Next"
    ):
        km.compress(model, ADAPTIVE, data=X[:32])
