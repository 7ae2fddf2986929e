"""Statistics gathered anew, against NumPy."""

import keras
import numpy as np
import pytest

import kerasmem as km
from kerasmem.compression.quantize import ReestimateBatchNorm
from kerasmem.errors import ConfigError, DataError, ModelError
from kerasmem.graph.values import to_numpy
from tests.compression.repair.test_after import data
from tests.compression.repair.test_fold_batch_norm import (
    norms,
    outputs,
    with_statistics,
)
from tests.models import L, chain, in_place

BN = L.BatchNormalization


def test_statistics_are_those_of_the_samples_of_one_batch():
    model = chain((4,), L.Dense(5), BN(), L.ReLU(), L.Dense(3), BN())
    with_statistics(model)
    x = data((4,), 30)
    first, bias, second, last = (w for layer in model.layers for w in layer.weights
                                 if w.name in ("kernel", "bias"))  # fmt: skip
    changes = in_place(ReestimateBatchNorm(), model, x)
    one, two = norms(model)
    z = x @ to_numpy(first) + to_numpy(bias)
    np.testing.assert_allclose(to_numpy(one.moving_mean), z.mean(0), rtol=1e-4)
    np.testing.assert_allclose(to_numpy(one.moving_variance), z.var(0), rtol=1e-4)
    z = (z - z.mean(0)) / np.sqrt(z.var(0) + one.epsilon)
    z = np.maximum(z * to_numpy(one.gamma) + to_numpy(one.beta), 0)
    z = z @ to_numpy(second) + to_numpy(last)
    np.testing.assert_allclose(
        to_numpy(two.moving_mean), z.mean(0), rtol=1e-4, atol=1e-5
    )
    np.testing.assert_allclose(to_numpy(two.moving_variance), z.var(0), rtol=1e-4)
    changed = {c.weight.rpartition("/")[2] for c in changes if c.changed}
    assert changed == {"moving_mean", "moving_variance"}
    normal = (outputs(model, x) - to_numpy(two.beta)) / to_numpy(two.gamma)
    np.testing.assert_allclose(normal.mean(0), 0, atol=1e-4)
    np.testing.assert_allclose(normal.std(0), 1, atol=0.03)


def test_many_batches_count_as_one(tmp_path):
    inner = keras.Sequential([keras.Input((3, 4, 5)), BN(axis=2), L.Dropout(0.5)])
    model = chain((3, 4, 5), inner, L.Flatten(), L.Dense(2))
    x = data((3, 4, 5), 90) * np.arange(1, 5, dtype="float32")[:, None]
    result = km.compress(model, ReestimateBatchNorm(samples=75), data=(x, x))
    norm = norms(result.model)[0]
    seen = x[:75].astype("float64")
    np.testing.assert_allclose(
        to_numpy(norm.moving_mean), seen.mean((0, 1, 3)), rtol=1e-5
    )
    np.testing.assert_allclose(
        to_numpy(norm.moving_variance), seen.var((0, 1, 3)), rtol=1e-5
    )
    assert to_numpy(norms(model)[0].moving_mean).tolist() == [0.0] * 4
    result.save(tmp_path / "m.keras")
    again = keras.models.load_model(tmp_path / "m.keras")
    np.testing.assert_array_equal(outputs(again, x), outputs(result.model, x))


def test_what_a_mask_leaves_out_does_not_count():
    model = chain((6, 3), L.Masking(), BN(momentum=0.0), L.Dense(2))
    x = data((6, 3), 80) + 2
    x[:, 4:] = 0
    x[40:, 2:] = 0
    x[:32] = 0  # a batch of nothing
    seen = x[(x != 0).any(-1)].astype("float64")
    in_place(ReestimateBatchNorm(), model, x)
    norm = norms(model)[0]
    np.testing.assert_allclose(to_numpy(norm.moving_mean), seen.mean(0), rtol=1e-5)
    np.testing.assert_allclose(to_numpy(norm.moving_variance), seen.var(0), rtol=1e-5)
    found = [to_numpy(v) for v in (norm.moving_mean, norm.moving_variance)]
    model(x, training=True)  # what Keras itself makes of one batch
    for value, again in zip(
        found, (norm.moving_mean, norm.moving_variance), strict=True
    ):
        np.testing.assert_allclose(value, to_numpy(again), rtol=1e-4)


def test_what_it_cannot_do_is_an_error():
    model = chain((4,), L.Dense(5, name="dense"), BN(name="norm"))
    with pytest.raises(
        ConfigError, match="estimation needs samples. Received.* Next: pass data=x"
    ):
        in_place(ReestimateBatchNorm(), model)
    with pytest.raises(ConfigError, match="whole number from 2. Received: samples=1"):
        ReestimateBatchNorm(samples=1)
    x = data((4,))
    x[0, 0] = np.inf
    before = [to_numpy(w) for w in model.weights]
    with pytest.raises(DataError, match="layer 'norm' outputs NaN or infinity"):
        in_place(ReestimateBatchNorm(), model, x)
    for old, new in zip(before, model.weights, strict=True):
        np.testing.assert_array_equal(old, to_numpy(new))
    with pytest.raises(ModelError, match="has no BatchNormalization to re-estimate"):
        in_place(ReestimateBatchNorm(), chain((4,), L.Dense(5)), data((4,)))
