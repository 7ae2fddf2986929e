"""A search returns what was asked for, judged by samples that it did not see."""

import itertools
import math
import random
import re
from functools import cache
from types import SimpleNamespace

import keras
import numpy as np
import pytest

import kerasmem as km
from kerasmem.compression import search as request
from kerasmem.compression.search import strategy, trials
from kerasmem.compression.search import target as tried_families
from kerasmem.errors import ConfigError, DataError, KerasMemWarning, TargetError
from kerasmem.graph.activations import peak_activation_bytes
from tests.models import L, Subclassed, chain

SAMPLES, FINAL = 200, 100


def clouds(count, first=0):
    """Three Gaussian clouds; the first feature is the number of the sample."""
    rng = np.random.default_rng(first)
    centers = np.random.default_rng(0).normal(size=(3, 12)) * 1.5
    y = rng.integers(0, 3, count)
    x = (centers[y] + rng.normal(size=(count, 12))).astype("float32")
    x[:, 0] = np.arange(first, first + count) / 1000
    return x, y


TRAIN, TEST = clouds(SAMPLES), clouds(FINAL, SAMPLES)
OF_LINEAR = {
    name: (x, x[:, :3])
    for name, (x, _) in {"data": TRAIN, "validation_data": TEST}.items()
}


@cache
def network():
    """One for all tests: nothing that is handed in is changed."""
    model = chain(
        (12,),
        L.Dense(40, activation="relu"),
        L.Dense(16, activation="relu"),
        L.Dense(3, activation="softmax"),
    )
    loss = "sparse_categorical_crossentropy"
    model.compile(keras.optimizers.Adam(0.02), loss, metrics=["accuracy"])
    model.fit(*TRAIN, epochs=4, verbose=0)
    return model


def small():
    model = chain((12,), L.Dense(3))
    model.compile("sgd", "mse")
    return model


@pytest.fixture(autouse=True)
def only(monkeypatch):
    """Let a search try few families, in few steps: its time is theirs."""

    def only(*names):
        def few(costs):
            return [f for f in tried_families.families(costs) if f.name in names]

        monkeypatch.setattr(trials, "families", few)

    only("int8", "prune, int8")
    monkeypatch.setattr(strategy, "_HALVINGS", 1)
    monkeypatch.setattr(strategy, "_TRAINED_HALVINGS", 1)
    return only


def searched(model, **arguments):
    given = {
        "data": TRAIN,
        "validation_data": TEST,
        "fine_tune_epochs": 1,
        "batch_size": 20,
        "seed": 3,
        "verbose": 0,
    }
    return km.compress(model, **{**given, **arguments})


def without_times(report):
    return [vars(trial) | {"seconds": 0} for trial in report.trials]


def test_the_model_meets_the_target_and_the_drop(tmp_path, capfd):
    model = network()
    before = model.get_weights()
    limit = km.compress(model, km.Quantize()).report.after.file_bytes - 200
    state = random.getstate()
    result = searched(model, target={"file_bytes": limit}, max_drop=0.4, verbose=1)
    assert random.getstate() == state
    search = result.report.search
    chosen = search.trials[search.chosen]
    assert search.is_met
    assert chosen.over <= 1
    assert chosen.worst_drop <= 0.4
    assert result.report.steps == chosen.steps
    result.save(tmp_path / "small.keras")
    size = (tmp_path / "small.keras").stat().st_size
    assert size == pytest.approx(chosen.costs["file_bytes"], abs=64)
    loaded = keras.models.load_model(tmp_path / "small.keras")
    found = loaded.evaluate(*TEST, verbose=0, return_dict=True)
    assert found == pytest.approx(result.report.after.metrics, abs=1e-5)
    assert search.metric == "accuracy"
    assert search.samples == SAMPLES // 5
    assert result.report.samples == FINAL
    # int8 alone is too large, and so is not judged; what meets the target is trained.
    names = [(trial.name, trial.epochs) for trial in search.trials]
    assert names[0] == ("unchanged", 0)
    assert ("prune, int8", 1) in names
    assert "int8" not in [name for name, _ in names]
    # Nothing that was handed in is another one.
    for old, now in zip(before, model.get_weights(), strict=True):
        np.testing.assert_array_equal(old, now)
    told = capfd.readouterr().err
    assert told.count("tried ") == len(search.trials)
    assert "tried prune, int8 (trained): file_bytes" in told


def test_the_seed_decides_it_all(only):
    only("prune, int8")
    model = network()
    target = {"file_bytes": 4200}
    one, two = (searched(model, target=target) for _ in range(2))
    assert one.report.search.is_met
    assert without_times(one.report.search) == without_times(two.report.search)
    for a, b in zip(one.model.get_weights(), two.model.get_weights(), strict=True):
        np.testing.assert_array_equal(a, b)


def test_out_of_reach_and_no_sample_of_the_final_judgement_is_seen(monkeypatch):
    seen = {"fit": set(), "evaluate": []}
    fit, evaluate = keras.Model.fit, keras.Model.evaluate

    def numbers(x):
        return frozenset(np.round(np.asarray(x)[:, 0] * 1000).astype(int).tolist())

    def watched_fit(self, x=None, y=None, **rest):
        seen["fit"] |= numbers(x)
        return fit(self, x, y, **rest)

    def watched_evaluate(self, x=None, y=None, **rest):
        seen["evaluate"].append(numbers(x))
        return evaluate(self, x, y, **rest)

    model = network()
    monkeypatch.setattr(keras.Model, "fit", watched_fit)
    monkeypatch.setattr(keras.Model, "evaluate", watched_evaluate)
    with pytest.raises(TargetError) as caught:
        searched(model, target={"file_bytes": "1KiB"}, max_drop=0.3)
    before, *held, after = seen["evaluate"]
    assert before == after == frozenset(range(SAMPLES, SAMPLES + FINAL))
    assert len(set(held)) == 1
    assert len(held[0]) == SAMPLES // 5
    assert seen["fit"].isdisjoint(held[0])
    assert seen["fit"] | held[0] == frozenset(range(SAMPLES))
    assert_nearest(str(caught.value), caught.value.result)


def assert_nearest(text, result):
    """What cannot be met is an error that says what is reachable, and has it."""
    search = result.report.search
    assert not search.is_met
    chosen = search.trials[search.chosen]
    assert chosen.worst_drop <= 0.3
    assert chosen.over == min(t.over for t in search.trials if t.worst_drop <= 0.3)
    assert 1 < chosen.over < search.trials[0].over
    assert "meets the target (file_bytes 1.00 KiB) with max_drop=0.3" in text
    assert re.search(r"Nearest with max_drop=0.3: .*file_bytes \d.*KiB, drop", text)
    assert "Smallest of all: " in text
    found = result.model.evaluate(*TEST, verbose=0, return_dict=True)
    assert found == pytest.approx(result.report.after.metrics)


@pytest.mark.one_backend
def test_without_time_the_model_is_as_it_was():
    model = network()
    with pytest.warns(KerasMemWarning, match="the model is unchanged .time ran out"):
        result = searched(model, max_drop=0.1, time_budget=0)
    assert [trial.name for trial in result.report.search.trials] == ["unchanged"]
    for old, now in zip(model.get_weights(), result.model.get_weights(), strict=True):
        np.testing.assert_array_equal(old, now)
    with pytest.raises(TargetError, match="Trials: 1; time ran out") as caught:
        searched(model, target={"flops": 10}, time_budget=0)
    assert caught.value.result.report.search.chosen == 0


class Trainings(keras.callbacks.Callback):
    """Counts what begins and what ends; what is open then stays open."""

    begun = ended = 0

    def on_train_begin(self, logs=None):
        self.begun += 1

    def on_train_end(self, logs=None):
        self.ended += 1


class Diverging(keras.callbacks.Callback):
    """Leaves weights that are no numbers."""

    def on_train_end(self, logs=None):
        self.model.layers[-1].bias.assign([np.nan] * 3)


def test_a_training_that_diverges_is_not_taken(only):
    only("prune")
    model = chain((12,), L.Dense(200), L.Dense(3))
    model.compile("sgd", "mse")
    callbacks = [Diverging()]
    result = searched(model, **OF_LINEAR, max_drop=99.0, callbacks=callbacks)
    search = result.report.search
    diverged = [trial for trial in search.trials if trial.epochs]
    assert diverged
    assert all(math.isnan(trial.drop) for trial in diverged)
    assert all(trial.worst_drop == math.inf for trial in diverged)
    assert search.is_met
    assert not search.trials[search.chosen].epochs


def test_a_model_that_is_no_number_before_cannot_be_compared_with():
    model = small()
    Diverging.on_train_end(SimpleNamespace(model=model))
    with pytest.raises(DataError, match="The loss of the original model is nan on"):
        searched(model, **OF_LINEAR, max_drop=9.0)


@pytest.mark.one_backend
def test_outputs_and_inputs_by_name_are_judged_by_the_first_metric():
    inputs = {name: keras.Input((6,), name=name) for name in "ab"}
    hidden = L.Concatenate()(list(inputs.values()))
    outputs = {name: L.Dense(1, name=name)(hidden) for name in ("z", "score")}
    model = keras.Model(inputs, outputs)
    metrics = {"z": ["mae"], "score": ["mse", "mae"]}
    model.compile("sgd", dict.fromkeys(outputs, "mse"), metrics=metrics)

    def named(x):
        return (
            {"a": x[:, :6], "b": x[:, 6:]},
            {"z": x[:, :1], "score": x[:, 1:2]},
            {"z": np.ones(len(x)), "score": np.ones(len(x))},
        )

    result = searched(
        model,
        data=named(TRAIN[0]),
        validation_data=named(TEST[0]),
        target={"file_bytes": "1GiB"},
    )
    assert result.report.search.metric == "score_mse"
    found = list(result.report.before.metrics)
    assert found[:4] == ["score_mse", "score_mae", "z_mae", "loss"]


@pytest.mark.one_backend
def test_when_the_time_is_up_the_best_so_far_is_returned(monkeypatch, only):
    only("int8", "prune")
    # A clock that goes on by a second whenever someone looks at it: the time is up in
    # the middle of a training.
    looks = itertools.count()
    clock = SimpleNamespace(monotonic=lambda: float(next(looks)))
    for module in (request, trials):
        monkeypatch.setattr(module, "time", clock)
    trainings = Trainings()
    result = searched(
        network(),
        max_drop=0.3,
        time_budget=60,
        fine_tune_epochs=40,
        callbacks=[trainings],
    )
    assert trainings.begun == trainings.ended == 1
    search = result.report.search
    assert search.stopped == "time ran out"
    assert search.chosen > 0
    assert not any(trial.epochs for trial in search.trials)


@pytest.mark.one_backend
def test_every_cost_can_be_limited(only):
    only("prune, int8", "channels")
    model = network()
    before = 2 * (12 * 40 + 40 * 16 + 16 * 3)
    target = {
        "flops": 0.6 * before,
        "weight_bytes": "4KiB",
        "activation_bytes": peak_activation_bytes(model) - 1,
        "latency_ms": 1e6,
        "file_bytes": "1MiB",
    }
    result = searched(model, target=target, fine_tune_epochs=0)
    search = result.report.search
    first, chosen = search.trials[0], search.trials[search.chosen]
    assert first.costs["flops"] == before
    assert first.costs["weight_bytes"] == result.report.before.weight_bytes
    kernels = [layer.kernel.shape for layer in result.model.layers if layer.weights]
    assert chosen.costs["flops"] == 2 * sum(map(math.prod, kernels))
    assert chosen.costs["weight_bytes"] == result.report.after.weight_bytes
    peak = result.report.after.activation_peak_bytes
    assert chosen.costs["activation_bytes"] == peak
    assert all(chosen.costs[k] <= v for k, v in search.target.items())


@pytest.mark.one_backend
def test_what_cannot_be_done_to_a_model_is_left_out_with_the_reason(only):
    only("int8", "prune, int8", "channels")
    # Three by twelve weights are less than what it takes to tell of their codes.
    with pytest.warns(KerasMemWarning, match="No smaller model stays within"):
        result = searched(small(), **OF_LINEAR, max_drop=9.0)
    search = result.report.search
    assert search.metric == "loss"
    assert set(search.left_out) == {"channels"}
    assert "no channels" in search.left_out["channels"]
    assert search.chosen == 0


@pytest.mark.one_backend
def test_a_cost_that_cannot_be_told_is_one_clear_error():
    model = Subclassed()
    x = np.random.default_rng(0).integers(0, 11, (100, 5))
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile("adam", loss)
    model(x[:1])
    given = {"data": (x, x[:, 0] % 3), "validation_data": None}
    with pytest.raises(km.errors.ModelError, match="no graph"):
        searched(model, **given, target={"flops": 1})
    with pytest.raises(ConfigError, match="compute activation_bytes of the"):
        searched(model, **given, target={"activation_bytes": 1})


@pytest.mark.one_backend
@pytest.mark.parametrize(
    ("arguments", "error", "text"),
    [
        ({"target": {"file_byte": 9}}, ConfigError, "Did you mean 'file_bytes'"),
        (
            {"target": {"file_bytes": 0.2}},
            ConfigError,
            "at least 1. Received: file_bytes=0.2",
        ),
        ({"target": {"flops": -1}}, ConfigError, "above 0. Received: flops=-1"),
        ({"max_drop": -1}, ConfigError, "at least 0. Received: max_drop=-1"),
        ({"max_drop": 0.1, "data": None}, ConfigError, "Received: data=None"),
        (
            {"max_drop": 0.1, "validation_data": None},
            ConfigError,
            "max_drop needs labeled samples",
        ),
        (
            {"max_drop": 0.1, "validation_data": TEST[0]},
            ConfigError,
            "needs labels. Received.*give validation_data",
        ),
        (
            {"max_drop": 0.1, "validation_data": (TRAIN[0], TRAIN[1])},
            ConfigError,
            "different samples. Received: the same samples in both",
        ),
        ({"max_drop": "1%"}, ConfigError, "Received: max_drop='1%'"),
        ({"max_drop": 0.1, "data": TRAIN[0]}, DataError, "needs labels"),
        (
            {**OF_LINEAR, "max_drop": 0.1, "data": TRAIN[0], "fine_tune_epochs": 0},
            DataError,
            "needs labels to evaluate.*give data=",
        ),
        (
            {"max_drop": 0.1, "time_budget": -1},
            ConfigError,
            "least 0. Received: time_b",
        ),
        ({"max_drop": 0.1, "time_budget": "10m"}, ConfigError, "time_budget='10m'"),
        (
            {"steps": km.Quantize(), "target": {"flops": 1}},
            ConfigError,
            "`target` is only available in a search.*target=",
        ),
        (
            {"steps": "size", "time_budget": 3},
            ConfigError,
            "only available in a search. Received: time_budget=3",
        ),
        (
            {"time_budget": 3},
            ConfigError,
            "only available in a search. Received: time_budget=3",
        ),
    ],
)
def test_a_search_that_cannot_be_is_one_clear_error(arguments, error, text):
    with pytest.raises(error, match=text):
        searched(small(), **arguments)


@pytest.mark.one_backend
def test_a_model_without_a_loss_cannot_be_searched_for():
    with pytest.raises(ConfigError, match="has no loss.*--loss"):
        searched(chain((12,), L.Dense(3)), max_drop=0.1, fine_tune_epochs=0)
