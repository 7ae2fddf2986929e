"""Training with rounding on two devices: one model, one set of ranges."""

import keras
import numpy as np

import kerasmem as km
from kerasmem.memory.child import ON_THE_CPU, run_in_child
from tests.two_devices import TWO_DEVICES, two_devices

L = keras.layers
X = np.random.default_rng(0).normal(size=(16, 6, 6, 3)).astype("float32")
Y = np.random.default_rng(1).normal(size=(16, 4)).astype("float32")


def trained(callback, **options):
    """Return the weights after two epochs and the ranges, as plain data."""
    keras.utils.set_random_seed(7)
    inputs = keras.Input((6, 6, 3), name="picture")
    x = L.Conv2D(5, 3, activation="relu", name="conv")(inputs)
    x = L.BatchNormalization(name="norm")(x) if options.get("norm") else x
    model = keras.Model(inputs, L.Dense(4, name="head")(L.Flatten()(x)))
    model.compile(keras.optimizers.SGD(0.05), "mse", jit_compile=options.get("jit"))
    model.fit(
        X, Y, batch_size=8, epochs=2, shuffle=False, verbose=0, callbacks=[callback]
    )
    kinds = {type(v).__name__ for v in model.weights}
    weights = [keras.ops.convert_to_numpy(v).ravel().tolist() for v in model.weights]
    return {"weights": weights, "ranges": callback.ranges, "kinds": list(kinds)}


def on_two(_):
    """Return what trained on two devices and on one; in a child."""
    jit = keras.backend.backend() == "jax"
    scope = two_devices()
    choice = km.Quantize("int4")

    def aware(**options):
        return km.callbacks.QuantizationAware(choice, freeze_batch_norm=1, **options)

    found = {"one": trained(aware(), jit=jit)}
    with scope():
        found["two"] = trained(aware(), jit=jit)
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
        np.testing.assert_allclose(two, one, rtol=1e-4, atol=1e-6)
    ranges = found["rounded"]["ranges"]
    assert set(ranges) == {"picture", "conv", "norm", "head"}
    np.testing.assert_allclose(ranges["picture"], input_range(backend), rtol=1e-5)
    assert all(np.isfinite(w).all() for w in found["rounded"]["weights"])
    assert found["rounded"]["kinds"] == ["Variable"]
