"""The two nets, in Keras 3 and in tf_keras, with the same weights."""

import numpy as np

BATCH_SIZE = 128
RATE, TUNING_RATE = 2e-3, 3e-4
"""Of Adam: the first falls to zero while the nets are trained, so that they settle."""


def network(name, keras, scale=1.0):
    """Return an untrained net that answers with logits.

    Args:
        name: `"dense"`, 784-300-100-10, or `"conv"`, of 79,274 parameters.
        keras: Keras 3 or tf_keras.
        scale: of the widths.
    """
    layers = keras.layers

    def wide(width):
        return max(1, round(scale * width))

    inputs = keras.Input((28, 28, 1), name="image")
    if name == "dense":
        x = layers.Flatten()(inputs)
        x = layers.Dense(wide(300), activation="relu")(x)
        x = layers.Dense(wide(100), activation="relu")(x)
    else:
        x = layers.Conv2D(wide(16), 3, strides=2, activation="relu")(inputs)
        x = layers.Conv2D(wide(32), 3, strides=2, activation="relu")(x)
        x = layers.Flatten()(x)
        x = layers.Dense(wide(64), activation="relu")(x)
    return compiled(keras.Model(inputs, layers.Dense(10)(x)), keras)


def compiled(model, keras, rate=TUNING_RATE):
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(keras.optimizers.Adam(rate), loss, metrics=["accuracy"])
    return model


def trained_network(task, name, keras):
    """Return the net with the weights that `base` trained."""
    model = network(name, keras)
    with np.load(task.path(f"{name}.npz")) as file:
        model.set_weights([file[key] for key in file.files])
    return model


def falling_rate(task, keras):
    """Return a rate that falls to zero over the epochs that a net is trained."""
    steps = task.epochs * -(-task.samples // BATCH_SIZE)
    return keras.optimizers.schedules.CosineDecay(RATE, steps)


def fit(model, data, epochs, callbacks=()):
    return model.fit(
        *data, batch_size=BATCH_SIZE, epochs=epochs, verbose=0, callbacks=[*callbacks]
    )


def accuracy(model, keras, test):
    """Return the share of right answers; the model is compiled anew."""
    return compiled(model, keras).evaluate(*test, batch_size=500, verbose=0)[1]


def weight_bytes(model):
    """Return the bytes that a model's variables take in memory."""
    return sum(
        int(np.prod(w.shape)) * np.dtype(_name(w.dtype)).itemsize for w in model.weights
    )


def _name(dtype):
    return dtype if isinstance(dtype, str) else dtype.name  # tf_keras: a tf.DType
