"""Small networks to train with fake quantization, and what trains them."""

import keras
import numpy as np

import kerasmem as km
from kerasmem.compression.quantize.aware.learned import learned
from kerasmem.graph.values import to_numpy
from tests.models import L

BACKEND = keras.backend.backend()
JIT = {"tensorflow": [False, True], "jax": [True], "torch": [False]}[BACKEND]
X = np.random.default_rng(0).normal(size=(32, 8, 8, 3)).astype("float32")
Y = np.random.default_rng(1).normal(size=(32, 4)).astype("float32")


def network(dtype=None, seed=0):
    """Return a network with all that integers run as one."""
    keras.utils.set_random_seed(seed)
    inputs = keras.Input((8, 8, 3), name="picture")
    x = L.Conv2D(6, 3, use_bias=False, name="conv", dtype=dtype)(inputs)
    x = L.BatchNormalization(name="norm", dtype=dtype)(x)
    x = L.ReLU(name="relu", dtype=dtype)(x)
    y = L.Conv2D(6, 3, padding="same", name="side", dtype=dtype)(x)
    x = L.MaxPooling2D(name="pool", dtype=dtype)(x + y)
    x = L.Flatten(name="flat", dtype=dtype)(x)
    return keras.Model(inputs, L.Dense(4, name="head", dtype="float32")(x))


def in_order(*layers, shape=(8, 8, 3)):
    return keras.Sequential([keras.Input(shape, name="picture"), *layers])


def called_in_training():
    inputs = keras.Input((8, 8, 3), name="picture")
    x = L.Conv2D(4, 3, name="c")(inputs)
    x = L.BatchNormalization(name="norm")(x, training=True)
    return keras.Model(inputs, x)


def compiled(model, jit=JIT[0], optimizer="sgd", loss="mse"):
    """Compile, without XLA where there is a choice: it takes longer than the test."""
    model.compile(optimizer, loss, jit_compile=jit)
    return model


def fit(model, *callbacks, **options):
    return model.fit(
        X,
        Y,
        **{"batch_size": 16, "verbose": 0, "shuffle": False, **options},
        callbacks=list(callbacks),
    )


def aware(model, scheme="int8", **options):
    """Return a model with fake quantization, compiled as `model` is."""
    choice = scheme if isinstance(scheme, km.Quantize) else km.Quantize(scheme)
    return km.quantization_aware(model, choice, **options)


def ranges(model):
    return dict(learned(model).ranges)


def scales(model):
    """Return the learned scales by the names of weights, flat."""
    return {name: each.ravel() for name, each in learned(model).scales.items()}


def outputs(model, x, *, training=False):
    return to_numpy(keras.ops.cast(model(x, training=training), "float32"))
