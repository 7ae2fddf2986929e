"""Training with rounding on two devices: one model, one set of ranges."""

import keras
import numpy as np

import kerasmem as km
from kerasmem.memory.child import ON_THE_CPU, run_in_child
from tests.two_devices import TWO_DEVICES, two_devices

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


def trained(callback, **options):
    """Return the weights after two epochs and the ranges, as plain data."""
    inputs = keras.Input((6, 6, 3), name="picture")
    layer = L.Conv2D(5, 3, activation="relu", name="conv", kernel_initializer=kernel)
    x = layer(inputs)
    x = L.BatchNormalization(name="norm")(x) if options.get("norm") else x
    top = L.Dense(4, name="head", kernel_initializer=kernel)
    model = keras.Model(inputs, top(L.Flatten()(x)))
    model.compile(keras.optimizers.SGD(5e-4), "mse", jit_compile=options.get("jit"))
    model.fit(
        X, Y, batch_size=8, epochs=2, shuffle=False, verbose=0, callbacks=[callback]
    )
    kinds = {type(v).__name__ for v in model.weights}
    weights = [keras.ops.convert_to_numpy(v).ravel().tolist() for v in model.weights]
    scales = {name: s.tolist() for name, s in callback.scales.items()}
    found = {"weights": weights, "ranges": callback.ranges, "kinds": list(kinds)}
    return {**found, "scales": scales}


def on_two(_):
    """Return what trained on two devices and on one; in a child."""
    jit = keras.backend.backend() == "jax"
    scope = two_devices()
    choice = km.Quantize("int4")

    def aware(**options):
        return km.callbacks.QuantizationAware(choice, freeze_batch_norm=1, **options)

    found = {"one": trained(aware(), jit=jit)}
    found["one learns"] = trained(aware(learned_scales=True), jit=jit)
    with scope():
        found["two"] = trained(aware(), jit=jit)
        found["two learn"] = trained(aware(learned_scales=True), jit=jit)
        both = aware(activations=True, decay=0.5)
        found["rounded"] = trained(both, jit=jit, norm=True)
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


def test_two_devices_train_one_rounded_model(backend):
    if backend == "torch":
        return  # Keras needs several processes there
    environment = {**ON_THE_CPU, **TWO_DEVICES}
    found = run_in_child(
        f"{__name__}:on_two", {}, backend=backend, environment=environment
    )
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
    assert found["rounded"]["kinds"] == ["Variable"]
