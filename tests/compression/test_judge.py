"""The first metric is the first that `compile` was given, and has a direction."""

import inspect

import keras
import numpy as np
import pytest

import kerasmem as km
from kerasmem.compression.judge import (
    chance_of,
    far_worse,
    first_metric,
    is_better_if_higher,
)
from kerasmem.compression.measure import evaluate
from kerasmem.errors import ConfigError
from tests.models import L, chain

X = np.random.default_rng(0).normal(size=(24, 6)).astype("float32")
LABELS = {"score": X[:, :1], "b": X[:, 1:2]}


def two_outputs(**settings):
    inputs = keras.Input((6,))
    outputs = {name: L.Dense(1, name=name)(inputs) for name in LABELS}
    model = keras.Model(inputs, outputs)
    model.compile("sgd", dict.fromkeys(LABELS, "mse"), **settings)
    return model


def metrics_of_keras():
    """A metric of every kind that Keras itself calls better if higher or lower."""
    arguments = (
        {},
        {"num_classes": 2},
        {"num_classes": 2, "target_class_ids": [0]},
        {"target_class_ids": [0]},
        *({name: 0.5} for name in ("precision", "recall")),
        *({name: 0.5} for name in ("sensitivity", "specificity")),
    )
    for kind in vars(keras.metrics).values():
        if not (inspect.isclass(kind) and issubclass(kind, keras.metrics.Metric)):
            continue
        for given in arguments:
            try:
                metric = kind(**given)
            except (TypeError, NotImplementedError):
                continue
            if getattr(metric, "_direction", None):
                yield metric
            break


METRICS = list(metrics_of_keras())


@pytest.mark.one_backend
def test_many_metrics_of_keras_are_looked_at():
    assert len(METRICS) > 30


@pytest.mark.one_backend
@pytest.mark.parametrize("metric", METRICS, ids=lambda metric: metric.name)
def test_a_direction_is_that_of_keras_whatever_the_name_of_the_output(metric):
    higher = metric._direction == "up"
    assert is_better_if_higher(metric.name) is higher
    assert is_better_if_higher(f"b_{metric.name}_1") is higher
    assert is_better_if_higher(f"score_{metric.name}") is higher


@pytest.mark.one_backend
def test_the_loss_of_an_output_called_score_is_no_score():
    assert not is_better_if_higher("score_loss")
    assert not is_better_if_higher("acceleration_mae")


def test_the_first_metric_is_not_the_first_by_the_alphabet():
    model = chain((6,), L.Dense(3, activation="softmax"))
    loss = "sparse_categorical_crossentropy"
    of_two = keras.metrics.SparseTopKCategoricalAccuracy(k=2, name="of_two")
    model.compile("sgd", loss, metrics=[of_two, "acc"])
    found = evaluate(model, (X, np.arange(24) % 3))
    assert list(found) == ["of_two", "acc", "loss"]
    assert first_metric(found) == "of_two"


def test_of_several_outputs_the_loss_is_that_of_all():
    model = two_outputs()
    found = evaluate(model, (X, LABELS))
    assert first_metric(found) == "loss"
    assert found == model.evaluate(X, LABELS, verbose=0, return_dict=True)
    found = evaluate(two_outputs(metrics={"score": ["mae"]}), (X, LABELS))
    assert first_metric(found) == "score_mae"


@pytest.mark.parametrize("steps", [km.Quantize(), None])
def test_a_loss_with_penalties_on_weights_judges_nothing(steps):
    penalty = keras.regularizers.L2(0.1)
    model = chain((6,), L.Dense(8, kernel_regularizer=penalty), L.Dense(1))
    model.compile("sgd", "mse")
    x = np.repeat(X, 10, axis=0)
    data = {"data": (x, x[:, :1]), "validation_data": (X, X[:, :1])}
    wanted = {"max_drop": 0.1, "fine_tune_epochs": 0, "time_budget": None}
    with pytest.raises(ConfigError, match=r"weight penalties.*dense.*metrics="):
        km.compress(model, steps, **data, **wanted)
    if steps is not None:
        km.compress(model, steps, **data, **wanted, metrics=["mse"])


@pytest.mark.one_backend
def test_a_drop_that_is_no_number_is_one_clear_error():
    with pytest.raises(ConfigError, match="at least 0. Received: max_drop='1%'"):
        km.compress(chain((6,), L.Dense(1)), km.Quantize(), max_drop="1%")


@pytest.mark.one_backend
@pytest.mark.parametrize(
    ("before", "after", "chance", "words"),
    [
        ({"accuracy": 0.9}, {"accuracy": 0.49}, 0.1, "accuracy 0.9000 to 0.4900, more"),
        ({"accuracy": 0.9}, {"accuracy": 0.51}, 0.1, None),
        ({"accuracy": 0.95}, {"accuracy": 0.92}, 0.9, "chance, 0.9000"),
        ({"accuracy": 0.9}, {"accuracy": float("nan")}, 0.1, "0.9000 to nan"),
        ({"accuracy": 0.05}, {"accuracy": 0.0}, 0.1, None),
        ({"accuracy": 0.9}, {"accuracy": 0.1}, None, None),
        ({"top_5_accuracy": 0.9}, {"top_5_accuracy": 0.1}, 0.1, None),
        ({"loss": 0.4}, {"loss": 0.81}, None, "loss 0.4 to 0.81, more than twice"),
        ({"loss": 0.4}, {"loss": 0.79}, None, None),
        ({"loss": -0.4}, {"loss": -0.1}, None, None),
    ],
)
def test_far_worse_is_half_of_the_way_to_chance_or_twice_the_loss(
    before, after, chance, words
):
    found = far_worse(before, after, chance)
    assert found is None if words is None else words in found


@pytest.mark.parametrize(
    ("units", "loss", "labels", "chance"),
    [
        (4, "sparse_categorical_crossentropy", [0, 1, 2, 3, 0, 0], 0.5),
        (4, "sparse_categorical_crossentropy", [0, 1, 2, 3], 0.25),
        (4, "categorical_crossentropy", np.eye(4)[[1, 1, 1, 2]], 0.75),
        (1, "binary_crossentropy", [[0], [0], [0], [0], [1]], 0.8),
        (3, "binary_crossentropy", np.ones((4, 3)), None),
        (2, "mse", np.ones((4, 2)), None),
    ],
)
def test_chance_is_that_of_the_most_frequent_class(units, loss, labels, chance):
    model = chain((6,), L.Dense(units, activation="softmax"))
    model.compile("sgd", loss)
    found = chance_of(model, (X[: len(labels)], np.array(labels)))
    assert found == (None if chance is None else pytest.approx(chance))


def test_the_first_words_of_a_result_say_what_is_far_worse():
    labels = X[:, :3].argmax(1)
    model = chain((6,), L.Dense(32), L.Dense(3, activation="softmax"))
    loss = "sparse_categorical_crossentropy"
    model.compile(keras.optimizers.Adam(0.1), loss, metrics=["accuracy"])
    model.fit(X, labels, epochs=20, verbose=0)
    judged = {"data": (X, labels), "validation_data": (X, labels)}
    result = km.compress(model, km.Prune(0.999, include="kernel"), **judged)
    assert result.report.warning.startswith("far worse: accuracy ")
    first = f"<CompressionResult of {model.name!r}: {result.report.warning}; "
    assert repr(result).startswith(first)
    assert km.compress(model, "lossless", **judged).report.warning is None
