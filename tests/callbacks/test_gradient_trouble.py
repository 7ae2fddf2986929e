"""Networks with a fault each, and healthy ones: what a monitor says of them."""

import json
import warnings

import keras
import numpy as np
import pytest
from keras import layers

from kerasmem.callbacks import GradientMonitor
from kerasmem.callbacks.gradient_signs import learning_rate
from kerasmem.errors import KerasMemWarning
from kerasmem.records import Finding, GradientRecord

CLASSES = 3


def watched(model, data, optimizer, *, epochs=2, loss=None, callbacks=(), **options):
    keras.utils.set_random_seed(4)
    loss = loss or keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(optimizer, loss, jit_compile=keras.backend.backend() == "jax")
    monitor = GradientMonitor(**({"every": 2} | options))
    model.fit(
        *data,
        batch_size=8,
        epochs=epochs,
        shuffle=False,
        verbose=0,
        callbacks=[*callbacks, monitor],
    )
    return monitor


def classes(*shape, samples=64):
    """Return inputs with a pattern for each class, in noise."""
    rng = np.random.default_rng(6)
    y = np.arange(samples) % CLASSES
    patterns = rng.normal(size=(CLASSES, *shape))
    x = patterns[y] + rng.normal(size=(samples, *shape))
    return x.astype("float32"), y


def dense_network():
    return keras.Sequential(
        [
            keras.Input((10,)),
            layers.Dense(16, activation="relu"),
            layers.Dense(16, activation="relu"),
            layers.Dense(CLASSES),
        ]
    ), classes(10)


def convolutional_network():
    return keras.Sequential(
        [
            keras.Input((8, 8, 2)),
            layers.Conv2D(6, 3, use_bias=False),
            layers.BatchNormalization(),
            layers.ReLU(),
            layers.Conv2D(6, 3, activation="relu"),
            layers.Flatten(),
            layers.Dense(CLASSES),
        ]
    ), classes(8, 8, 2)


def residual_network():
    inputs = keras.Input((8, 8, 2))
    hidden = layers.Conv2D(6, 3, padding="same")(inputs)
    for _ in range(2):
        branch = layers.Conv2D(6, 3, padding="same", activation="relu")(hidden)
        branch = layers.Conv2D(6, 3, padding="same")(branch)
        # Starts as zero, as many do: no gradient before it in the first step.
        branch = layers.BatchNormalization(gamma_initializer="zeros")(branch)
        hidden = layers.ReLU()(layers.Add()([hidden, branch]))
    pooled = layers.GlobalAveragePooling2D()(hidden)
    return keras.Model(inputs, layers.Dense(CLASSES)(pooled)), classes(8, 8, 2)


def recurrent_network():
    x, y = classes(6, samples=64)
    words = np.argsort(x, axis=1).astype("int32")
    model = keras.Sequential(
        [
            keras.Input((6,), dtype="int32"),
            layers.Embedding(40, 5),
            layers.LSTM(8),
            layers.Dense(CLASSES),
        ]
    )
    return model, (words, y)


HEALTHY = (dense_network, convolutional_network, residual_network, recurrent_network)


@pytest.mark.parametrize("make", HEALTHY)
def test_of_a_healthy_network_there_is_nothing_to_tell(make):
    keras.utils.set_random_seed(4)
    model, data = make()
    monitor = watched(model, data, keras.optimizers.Adam(1e-3), epochs=4)
    assert monitor.findings == []


def test_layers_far_below_the_top_of_a_deep_sigmoid_network_vanish():
    keras.utils.set_random_seed(4)
    hidden = [
        layers.Dense(8, activation="sigmoid", name=f"hidden_{depth}")
        for depth in range(14)
    ]
    model = keras.Sequential([keras.Input((10,)), *hidden, layers.Dense(CLASSES)])

    monitor = watched(model, classes(10), keras.optimizers.SGD(0.01))

    (finding,) = monitor.findings
    assert finding.kind == "vanishing gradient"
    assert "hidden_0" in finding.layers
    assert "hidden_13" not in finding.layers
    assert f"norms of layers hidden_0 to {finding.layers[-1]} are" in finding.text


def test_a_layer_behind_relus_that_are_never_positive_is_dead():
    keras.utils.set_random_seed(4)
    never = keras.initializers.Constant(-100.0)
    model = keras.Sequential(
        [
            keras.Input((10,)),
            layers.Dense(8, activation="relu", name="first"),
            layers.Dense(8, activation="relu", name="dead", bias_initializer=never),
            layers.Dense(CLASSES, name="top"),
        ]
    )

    monitor = watched(model, classes(10), keras.optimizers.SGD(0.01), epochs=3)

    (finding,) = monitor.findings  # once, not once an epoch or a layer
    assert finding.kind == "dead layer"
    assert finding.layers == ("first", "dead")
    assert "of layers first, dead was exactly zero in all" in finding.text


def test_a_run_that_diverges_explodes():
    keras.utils.set_random_seed(4)
    model = keras.Sequential([keras.Input((1,)), layers.Dense(1, use_bias=False)])
    ones, zeros = np.ones((64, 1), "float32"), np.zeros((64, 1), "float32")

    # Each of eight steps an epoch makes the error 1.4 times as large.
    monitor = watched(
        model, (ones, zeros), keras.optimizers.SGD(1.2), epochs=4, loss="mse"
    )

    kinds = [(finding.kind, finding.epoch) for finding in monitor.findings]
    assert kinds == [("too large update", 1), ("exploding gradient", 3)]


@pytest.mark.parametrize(
    "optimizer",
    [
        lambda: keras.optimizers.SGD(1e3),
        lambda: keras.optimizers.Adam(
            keras.optimizers.schedules.PiecewiseConstantDecay([2], [0.0, 1e3])
        ),
    ],
    ids=["SGD", "schedule"],
)
def test_a_learning_rate_that_throws_the_weights_away_is_named(optimizer):
    keras.utils.set_random_seed(4)
    model, data = dense_network()

    with pytest.warns(KerasMemWarning, match="learning rate of 1000 is far too large"):
        monitor = watched(model, data, optimizer(), epochs=4)

    (finding,) = monitor.findings
    assert (finding.kind, finding.epoch) == ("divergence", 0)
    assert "Keras's default for " in finding.text
    assert monitor.records[0].learning_rate == 1e3


@pytest.mark.one_backend
def test_the_learning_rate_is_that_of_the_update_by_a_schedule():
    steps = keras.optimizers.schedules.PiecewiseConstantDecay([2, 5], [0.1, 3.0, 0.2])
    optimizer = keras.optimizers.SGD(steps, gradient_accumulation_steps=2)
    optimizer._iterations.assign(12)  # six updates, by batches 0 to 11
    assert learning_rate(optimizer, [1]).value == pytest.approx(0.2)
    assert learning_rate(optimizer, [1, 4, 6]).value == pytest.approx(3.0)
    assert learning_rate(optimizer, [6]).value == pytest.approx(0.1)
    assert learning_rate(optimizer, [6]).usual == 0.01


@pytest.mark.one_backend
def test_parts_of_an_optimizer_have_no_one_learning_rate():
    whole = keras.optimizers.OptimizerMap(keras.optimizers.SGD(), {})
    parts = keras.optimizers.MultiOptimizer(whole)
    assert learning_rate(parts, [1]) is None


@pytest.mark.one_backend
def test_a_learning_rate_that_is_no_number_is_none():
    assert learning_rate(keras.optimizers.SGD(float("inf")), [1]) is None


def test_the_losses_of_an_epoch_are_kept_with_its_gradients():
    keras.utils.set_random_seed(4)
    model, data = dense_network()
    monitor = watched(model, data, keras.optimizers.SGD(0.01), epochs=2)
    kept = [record.loss for record in monitor.records]
    assert kept == pytest.approx(model.history.history["loss"])
    assert monitor.records[0].val_loss is None
    read = GradientRecord.from_json(monitor.records[0].to_json())
    assert (read.loss, read.learning_rate) == (kept[0], pytest.approx(0.01))


def test_one_infinite_batch_behind_a_relu_is_found_where_the_loss_shows_nothing(
    backend, tmp_path
):
    keras.utils.set_random_seed(4)
    model, (x, y) = convolutional_network()
    x = x.copy()
    x[16:24] = np.inf  # the third batch
    stop = keras.callbacks.TerminateOnNaN()

    with pytest.warns(KerasMemWarning) as caught:
        monitor = watched(
            model,
            (x, y),
            keras.optimizers.Adam(),
            epochs=3,
            callbacks=[stop],
            log_dir=tmp_path,
        )

    # With oneDNN TensorFlow's ReLU makes zeros of NaN, so no loss shows it.
    relu_of_nan = keras.ops.convert_to_numpy(keras.ops.relu(np.float32([np.nan])))
    if not np.isnan(relu_of_nan).any():
        assert len(monitor.records) == 3
    found = [f for f in monitor.findings if f.kind == "nonfinite gradient"]
    assert "first in step 3 of the epoch" in found[0].text
    assert "conv2d" in found[0].text
    assert monitor.records[0].nonfinite_steps > 0
    warned = [str(w.message) for w in caught if w.category is KerasMemWarning]
    assert warned == [finding.text for finding in found]
    lines = (tmp_path / "findings.jsonl").read_text().splitlines()
    assert list(map(Finding.from_json, lines)) == monitor.findings
    assert json.loads(lines[0])["monitor"] == "GradientMonitor"


def test_the_layers_are_named_without_per_variable_statistics_too():
    keras.utils.set_random_seed(4)
    model, (x, y) = dense_network()
    x = x.copy()
    x[8:16] = np.nan

    with pytest.warns(KerasMemWarning, match=r"step 2 of the epoch in .*dense"):
        watched(model, (x, y), keras.optimizers.SGD(0.1), per_variable=False)


def test_a_model_without_trainable_weights_is_said_to_have_nothing_to_watch():
    model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1)])
    model.trainable = False
    model.compile("sgd", "mse")
    monitor = GradientMonitor()
    x = np.ones((4, 2), "float32")
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        model.fit(x, x[:, :1], verbose=0, callbacks=[monitor])
    ours = [str(w.message) for w in told if w.category is KerasMemWarning]
    assert [text for text in ours if "no trainable weights" in text] == ours[:1]
    assert len(ours) == 1
    assert monitor.records == []
