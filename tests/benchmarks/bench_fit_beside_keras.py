"""Compares the history of `km.fit` with that of `model.fit`, key by key.

    KERAS_BACKEND=jax python -m tests.benchmarks.bench_fit_beside_keras [--jit]

Prints the largest relative difference per key for each form of outputs, targets and
weights, with whole batches and with micro-batches. Exits with 1 if one is above 1e-6.
"""

import argparse
import sys
import warnings
from unittest import mock

import keras
import numpy as np
from keras import layers

import kerasmem as km
from kerasmem.memory.fit import training

SAMPLES, BATCH, WIDTH = 100, 32, 4
LIMIT = 1e-6
LOSSES = {
    "mse": ("sigmoid", "real", keras.losses.MeanSquaredError),
    "mae": ("sigmoid", "real", keras.losses.MeanAbsoluteError),
    "mape": ("sigmoid", "real", keras.losses.MeanAbsolutePercentageError),
    "msle": ("sigmoid", "real", keras.losses.MeanSquaredLogarithmicError),
    "huber": ("tanh", "real", keras.losses.Huber),
    "log_cosh": ("tanh", "real", keras.losses.LogCosh),
    "poisson": ("softplus", "real", keras.losses.Poisson),
    "cosine": ("tanh", "real", keras.losses.CosineSimilarity),
    "bce": ("sigmoid", "several", keras.losses.BinaryCrossentropy),
    "focal": ("sigmoid", "several", keras.losses.BinaryFocalCrossentropy),
    "hinge": ("tanh", "several", keras.losses.Hinge),
    "squared_hinge": ("tanh", "several", keras.losses.SquaredHinge),
    "categorical_hinge": ("tanh", "one", keras.losses.CategoricalHinge),
    "kld": ("softmax", "one", keras.losses.KLDivergence),
    "cce": ("softmax", "one", keras.losses.CategoricalCrossentropy),
    "categorical_focal": ("softmax", "one", keras.losses.CategoricalFocalCrossentropy),
    "sparse": ("softmax", "index", keras.losses.SparseCategoricalCrossentropy),
    "dice": ("sigmoid", "several", lambda: keras.losses.Dice(axis=1)),
    "tversky": ("sigmoid", "several", lambda: keras.losses.Tversky(axis=1)),
    "summed": ("tanh", "real", lambda: keras.losses.MeanSquaredError("sum")),
    "focal_by_hand": ("sigmoid", "several", lambda: focal_by_sample),
    "mean_of_batch": ("tanh", "real", lambda: mean_of_batch),
}
"""Activation of the output, kind of targets and loss of each output."""


def focal_by_sample(y_true, y_pred):
    entropy = keras.losses.binary_crossentropy(y_true, y_pred)
    return keras.ops.square(1.0 - keras.ops.exp(-entropy)) * entropy


def mean_of_batch(y_true, y_pred):
    return keras.ops.mean(keras.ops.square(y_true - y_pred))


def targets(kind, rng, samples=SAMPLES):
    index = rng.integers(0, WIDTH, samples)
    match kind:
        case "real":
            return rng.uniform(0.1, 1, (samples, WIDTH)).astype("float32")
        case "several":
            return rng.integers(0, 2, (samples, WIDTH)).astype("float32")
        case "one":
            return np.eye(WIDTH, dtype="float32")[index]
    return index


def network(names, pack, **options):
    """Return a compiled model with an output for each loss."""
    keras.utils.set_random_seed(1)
    inputs = keras.Input((6,))
    x = layers.Dense(8, "tanh", activity_regularizer="l2")(inputs)
    outputs = {
        n: layers.Dense(WIDTH, LOSSES[n][0], kernel_regularizer="l2", name=n)(x)
        for n in names
    }
    model = keras.Model(inputs, pack(outputs))
    loss = pack({name: LOSSES[name][2]() for name in names})
    rate = options.pop("rate", 0.01)
    usual = {"optimizer": keras.optimizers.SGD(rate), "loss": loss}
    if keras.backend.backend() == "tensorflow":
        usual["jit_compile"] = False
    model.compile(**usual | options)
    return model


def alone(values):
    return next(iter(values.values()))


def in_list(values):
    return [*values.values()]


def forms():
    """Return arguments of `network` and options of `fit` by the name of the form."""
    two, six = ["mse", "cce"], ["mae", "bce", "kld", "sparse", "summed", "cosine"]
    uniform = np.random.default_rng(9).uniform
    weights = uniform(0.1, 3, SAMPLES).astype("float32")
    by_output = [uniform(0.1, 3, SAMPLES).astype("float32") for _ in two]
    measured = {"metrics": ["mae"], "weighted_metrics": ["mse"]}
    by_name = {n: ["mae"] for n in two}
    return {
        "one output": (["mse"], alone, measured, {}),
        "one output, sample weights": (
            ["mse"],
            alone,
            measured,
            {"sample_weight": weights},
        ),
        "one output, class weights": (
            ["sparse"],
            alone,
            {"metrics": ["accuracy"], "weighted_metrics": ["accuracy"]},
            {"class_weight": {0: 1.0, 1: 3.0, 2: 0.2, 3: 1.0}},
        ),
        "dict": (two, dict, {"metrics": by_name}, {}),
        "dict, loss weights": (
            six,
            dict,
            {"loss_weights": {n: 0.1 + i for i, n in enumerate(six)}},
            {},
        ),
        "dict, sample weights": (
            two,
            dict,
            {"weighted_metrics": by_name},
            {"sample_weight": dict(zip(two, by_output, strict=True))},
        ),
        "list": (two, in_list, {"metrics": [["mae"], ["mse"]]}, {}),
        "list, sample weights": (
            two,
            in_list,
            {"loss_weights": [1.0, 0.3]},
            {"sample_weight": by_output},
        ),
        # Small updates: the percentage error amplifies rounding in the weights.
        "every loss": (
            [*LOSSES],
            dict,
            {"rate": 1e-5},
            {},
        ),
        "run eagerly": (two, dict, {"run_eagerly": True}, {}),
    }


def differences(form, parts, jit=False):
    """Return the relative difference of each key of the two histories.

    Args:
        form: A value of `forms`.
        parts: Number of micro-batches per batch; 1 for whole batches.
        jit: Whether XLA or torch compiles the steps.
    """
    names, pack, options, arguments = form
    options = options | {"jit_compile": True} if jit else options
    rng = np.random.default_rng(0)
    x = rng.normal(size=(SAMPLES, 6)).astype("float32")
    y = pack({name: targets(LOSSES[name][1], rng) for name in names})
    whole = {"batch_size": BATCH, "epochs": 2, "shuffle": False, "verbose": 0}
    whole |= {"validation_data": (x, y), "x": x, "y": y}
    expected = network(names, pack, **options).fit(**whole, **arguments).history
    with (
        mock.patch.object(training, "micro_batches", return_value=parts),
        warnings.catch_warnings(),
    ):
        if parts > 1:
            warnings.filterwarnings("ignore", r"A batch of \d+ is estimated")
        model = network(names, pack, **options)
        received = km.fit(model, **whole, **arguments, memory_limit="1TiB").history
    assert received.keys() == expected.keys(), (received.keys(), expected.keys())
    return {
        key: float(np.max(np.abs(np.subtract(received[key], value) / value)))
        for key, value in expected.items()
    }


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--jit", action="store_true")
    jit = parser.parse_args().jit
    print(f"backend: {keras.backend.backend()}, jit: {jit}")
    worst = 0.0
    for name, form in forms().items():
        if jit and "run_eagerly" in form[2]:
            continue
        for parts in (1, 3):
            values = differences(form, parts, jit)
            worst = max(worst, *values.values())
            print(f"{name}, {parts} micro-batches", flush=True)
            for key, value in values.items():
                print(f"    {key:28} {value:.1e}")
    print(f"largest relative difference: {worst:.1e}")
    return worst > LIMIT


if __name__ == "__main__":
    sys.exit(main())
