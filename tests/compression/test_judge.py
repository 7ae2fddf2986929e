"""The first metric is the first that `compile` was given, and has a direction."""

import inspect

import keras
import numpy as np
import pytest

import kerasmem as km
from kerasmem.compression.judge import first_metric, is_better_if_higher
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


def test_many_metrics_of_keras_are_looked_at():
    assert len(METRICS) > 30


@pytest.mark.parametrize("metric", METRICS, ids=lambda metric: metric.name)
def test_a_direction_is_that_of_keras_whatever_the_name_of_the_output(metric):
    higher = metric._direction == "up"
    assert is_better_if_higher(metric.name) is higher
    assert is_better_if_higher(f"b_{metric.name}_1") is higher
    assert is_better_if_higher(f"score_{metric.name}") is higher


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
    with pytest.raises(ConfigError, match=r"penalties on weights.*metrics=.*dense"):
        km.compress(model, steps, **data, **wanted)
    if steps is not None:
        km.compress(model, steps, **data, **wanted, metrics=["mse"])


def test_a_drop_that_is_no_number_is_one_clear_error():
    with pytest.raises(ConfigError, match="0 or more. Received: max_drop='1%'"):
        km.compress(chain((6,), L.Dense(1)), km.Quantize(), max_drop="1%")
