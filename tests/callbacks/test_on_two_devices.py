"""Training on two devices: one rounded model, one set of zeros, the weights of one."""

import keras
import numpy as np
import pytest

import kerasmem as km
from kerasmem.compression.prune import RigL, Splicing
from kerasmem.compression.quantize.aware.learned import learned
from kerasmem.graph.values import to_numpy
from kerasmem.optimizers import Adafactor, Adam8bit
from kerasmem.processes import ON_THE_CPU, run_in_child
from tests.two_devices import TWO_DEVICES, two_devices

pytestmark = pytest.mark.slow

L = keras.layers
RANDOM = np.random.default_rng(0)
X = RANDOM.normal(size=(16, 6, 6, 3)).astype("float32")
Y = RANDOM.normal(size=(16, 4)).astype("float32")
LAYERS = [(3, 3, 3, 5), (80, 4)]
STEP = 0.1
"""What codes of int4 are apart."""


def kernel(shape, dtype=None):
    """Return a kernel whose entries are a fifth of a step beside their codes."""
    codes = np.random.default_rng(2).integers(-6, 7, shape) + 0.2
    codes[(0,) * (len(shape) - 1)] = 7  # the largest of each channel
    return keras.ops.convert_to_tensor((STEP * codes).astype(dtype or "float32"))


def trained(*, norm=False, jit=None, **options):
    """Return what two epochs made of an aware model, as plain data."""
    inputs = keras.Input((6, 6, 3), name="picture")
    layer = L.Conv2D(5, 3, activation="relu", name="conv", kernel_initializer=kernel)
    x = layer(inputs)
    x = L.BatchNormalization(name="norm")(x) if norm else x
    top = L.Dense(4, name="head", kernel_initializer=kernel)
    model = keras.Model(inputs, top(L.Flatten()(x)))
    model.compile(keras.optimizers.SGD(5e-4), "mse", jit_compile=jit)
    aware = km.quantization_aware(model, km.Quantize("int4"), **options)
    aware.fit(X, Y, batch_size=8, epochs=2, shuffle=False, verbose=0)
    plain = km.dequantize(aware)
    weights = [keras.ops.convert_to_numpy(v).ravel().tolist() for v in plain.weights]
    found = learned(aware)
    scales = {name: each.ravel().tolist() for name, each in found.scales.items()}
    return {"weights": weights, "ranges": dict(found.ranges), "scales": scales}


PRUNINGS = {
    "magnitude": km.Prune(0.75),
    "taylor": km.Prune(0.75, criterion="taylor"),
    "rigl": km.Prune(0.75, schedule=RigL(every=0.2)),
    "splicing": km.Prune(0.75, schedule=Splicing()),
}


def pruned(choice):
    """Return the share of zeros after every epoch."""
    model = keras.Sequential([keras.Input((6,)), L.Dense(20), L.Dense(3)])
    model.compile(keras.optimizers.Adam(0.01), "mse")
    x = np.random.default_rng(0).normal(size=(64, 6)).astype("float32")
    seen = []

    class Look(keras.callbacks.Callback):
        def on_epoch_end(self, epoch, logs=None):
            kernel = to_numpy(self.model.layers[0].kernel)
            seen.append(float((kernel == 0).mean()))

    callbacks = [Look(), km.callbacks.Pruning(choice)]
    model.fit(x, x[:, :3], batch_size=16, epochs=4, verbose=0, callbacks=callbacks)
    return seen


RATE = 0.01
OPTIMIZERS = {
    "Adam8bit with scaled loss": lambda: keras.optimizers.LossScaleOptimizer(
        Adam8bit(RATE)
    ),
    "Adafactor": lambda: Adafactor(0.1),
}


def optimized(make):
    """Return the weights after three steps."""
    rng = np.random.default_rng(0)
    x = rng.normal(size=(24, 40)).astype("float32")
    y = rng.normal(size=(24, 104)).astype("float32")
    keras.utils.set_random_seed(1)
    model = keras.Sequential([keras.Input((40,)), L.Dense(104)])
    model.compile(make(), "mse")
    model.fit(x, y, batch_size=8, shuffle=False, verbose=0)
    return np.concatenate([w.ravel() for w in model.get_weights()]).tolist()


def on_two(_):
    """Return what trained on two devices and on one; in a child."""
    jit = keras.backend.backend() == "jax"
    scope = two_devices()
    by_optimizer = {"one": {n: optimized(make) for n, make in OPTIMIZERS.items()}}
    found = {"one": trained(jit=jit), "optimizers": by_optimizer}
    found["one learns"] = trained(learned_scales=True, jit=jit)
    with scope():
        found["two"] = trained(jit=jit)
        found["two learn"] = trained(learned_scales=True, jit=jit)
        found["rounded"] = trained(activations=True, decay=0.5, jit=jit, norm=True)
        found["zeros"] = {name: pruned(each) for name, each in PRUNINGS.items()}
        by_optimizer["two"] = {n: optimized(make) for n, make in OPTIMIZERS.items()}
    return found | {"devices": len(keras.distribution.list_devices())}


def input_range(backend):
    """Return the range of the input: replicas take the mean of theirs."""
    parts = 2 if backend == "tensorflow" else 1
    ends = None
    for batch in (X[:8], X[8:], X[:8], X[8:]):
        pieces = np.split(batch, parts)
        seen = np.mean([[min(p.min(), 0), max(p.max(), 0)] for p in pieces], axis=0)
        ends = seen if ends is None else (ends + seen) / 2
    return ends


@pytest.fixture(scope="module")
def found():
    """Return what one child trained, of all that is asked here."""
    environment = {**ON_THE_CPU, **TWO_DEVICES, "PYTHONWARNINGS": "ignore"}
    backend = keras.backend.backend()
    task = f"{__name__}:on_two"
    return run_in_child(task, {}, backend=backend, environment=environment)


def test_two_devices_train_one_rounded_model(found, backend):
    assert found["devices"] == 2
    for one, two in zip(found["one"]["weights"], found["two"]["weights"], strict=True):
        np.testing.assert_allclose(two, one, rtol=1e-5, atol=1e-7)
    # No weight came near to where its code changes, which would part the two for good,
    # and all have moved by far more than the two may be apart.
    for after, layer in zip(found["one"]["weights"][::2], LAYERS, strict=True):
        before = np.ravel(keras.ops.convert_to_numpy(kernel(layer)))
        moves = np.abs(after - before)
        assert moves.max() < 0.2 * STEP
        assert np.median(moves) > 1e-4
    one, two = found["one learns"]["scales"], found["two learn"]["scales"]
    assert one.keys() == two.keys() == {"conv/kernel", "head/kernel"}
    for name, scales in one.items():
        np.testing.assert_allclose(two[name], scales, rtol=1e-5)
        assert np.abs(np.array(scales) / STEP - 1).max() > 5e-3
    ranges = found["rounded"]["ranges"]
    assert set(ranges) == {"picture", "conv", "norm", "head"}
    np.testing.assert_allclose(ranges["picture"], input_range(backend), rtol=1e-5)
    assert all(np.isfinite(w).all() for w in found["rounded"]["weights"])


def test_two_devices_that_train_together_have_the_same_zeros(found):
    assert found["zeros"].keys() == PRUNINGS.keys()
    for name, seen in found["zeros"].items():
        assert seen[-1] == 0.75, name
        assert seen[0] > 0.3


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_an_optimizer_of_kerasmem_trains_on_two_devices_as_on_one(found, name):
    alone, together = (found["optimizers"][n][name] for n in ("one", "two"))
    # A sum in another order may round a code to its neighbor.
    assert np.abs(np.subtract(together, alone)).max() < 0.05 * RATE
