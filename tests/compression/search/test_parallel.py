"""Where the trials of a search run makes no difference to what it finds."""

import math
import multiprocessing
import os
import pickle
import random
import threading
from concurrent.futures import (
    BrokenExecutor,
    Executor,
    Future,
    ProcessPoolExecutor,
    ThreadPoolExecutor,
)
from dataclasses import replace
from functools import cache, partial

import keras
import numpy as np
import pytest

import kerasmem as km
from kerasmem.compression.search import parallel, strategy, trials
from kerasmem.compression.search import target as tried_families
from kerasmem.compression.search.parallel import SharedSetup
from kerasmem.compression.search.target import Target
from kerasmem.compression.search.trials import SearchTask
from kerasmem.compression.technique import Context
from kerasmem.errors import ConfigError
from tests.models import L, chain


def clouds(count, seed):
    rng = np.random.default_rng(seed)
    centers = np.random.default_rng(0).normal(size=(3, 12)) * 1.5
    y = rng.integers(0, 3, count)
    return (centers[y] + rng.normal(size=(count, 12))).astype("float32"), y


def few():
    """Let a search of this process try little; what is tried is its own in the end."""
    named = ("cluster", "prune, int8")

    def families(costs):
        return [f for f in tried_families.families(costs) if f.name in named]

    trials.families = families
    strategy._HALVINGS = strategy._TRAINED_HALVINGS = 1
    strategy._PROMISING = 2


@pytest.fixture(autouse=True)
def only_few(monkeypatch):
    for module, names in {
        trials: ["families"],
        strategy: ["_HALVINGS", "_TRAINED_HALVINGS", "_PROMISING"],
    }.items():
        for name in names:
            monkeypatch.setattr(module, name, getattr(module, name))
    few()


@cache
def network():
    """One for all tests: nothing that is handed in is changed."""
    model = chain(
        (12,),
        L.Dense(24, activation="relu"),
        L.Dropout(0.2),
        L.Dense(3, activation="softmax"),
    )
    loss = "sparse_categorical_crossentropy"
    model.compile(
        keras.optimizers.Adam(0.02),
        loss,
        metrics=["accuracy"],
        jit_compile=False,  # by far the most of the time of trials as small as these
    )
    model.fit(*clouds(200, 1), epochs=3, verbose=0)
    return model


def searched(model, **others):
    given = {"max_drop": 0.3, "fine_tune_epochs": 1, "batch_size": 20, "seed": 3}
    return km.compress(
        model,
        data=clouds(200, 1),
        validation_data=clouds(100, 2),
        verbose=0,
        **(given | others),
    )


@cache
def alone():
    return searched(network())


def assert_same_as_alone(two):
    one = alone()
    a, b = one.report.search, two.report.search
    for trial, other in zip(a.trials, b.trials, strict=True):
        assert replace(trial, seconds=0.0) == replace(other, seconds=0.0)
    assert (a.chosen, a.left_out, a.stopped) == (b.chosen, b.left_out, b.stopped)
    assert one.changes == two.changes
    for x, y in zip(one.model.get_weights(), two.model.get_weights(), strict=True):
        np.testing.assert_array_equal(x, y)


def with_few(function, *args):
    """Runs in a process of its own."""
    few()
    return function(*args)


@pytest.mark.usefixtures("new_interpreter")
def test_each_family_in_a_process_of_its_own_finds_the_same(monkeypatch):
    in_child = partial(km.memory.isolated, with_few)
    monkeypatch.setattr(parallel, "isolated", in_child)
    assert_same_as_alone(searched(network(), parallel="isolated"))


def test_a_search_leaves_no_graphs_of_its_trials():
    model = network()
    with km.memory.scope() as scope:
        result = searched(model)
    assert scope.graphs == []
    assert "graphs" not in {finding.kind for finding in scope.findings}
    assert len(result.report.search.trials) > 3


@pytest.mark.one_backend
def test_a_family_whose_process_died_is_told(monkeypatch):
    in_child = partial(km.memory.isolated, os._exit, 3)
    monkeypatch.setattr(parallel, "isolated", lambda *_: in_child())
    with pytest.raises(ConfigError, match="process of the search died"):
        searched(network(), parallel="isolated")


class LastFirst(Executor):
    """Runs what it was given, pickled as for another process, in an order of its own.

    Args:
        lost: of the first things, how many never come back.
    """

    def __init__(self, lost=0):
        self.lost, self.waiting, self.cancelled = lost, [], 0

    def submit(self, fn, /, *args, **kwargs):
        future = Future()
        future.add_done_callback(self._count)
        self.waiting.append((future, pickle.dumps((fn, args, kwargs))))
        future.result = lambda timeout=None: self._result(future, timeout)
        return future

    def _count(self, future):
        self.cancelled += future.cancelled()

    def _result(self, future, timeout):
        for other, sent in reversed(self.waiting[self.lost :]):
            fn, args, kwargs = pickle.loads(sent)
            random.seed(len(sent))  # as another process has drawn something else
            other.set_result(pickle.loads(pickle.dumps(fn(*args, **kwargs))))
        self.waiting, self.lost = [], 0
        return Future.result(future, 0 if timeout is None else min(timeout, 0))


def test_the_order_in_which_trials_end_decides_nothing(backend):
    if backend == "jax":
        return  # the two others do not compile what is tried
    assert {t.epochs for t in alone().report.search.trials[1:]} == {0, 1}
    assert alone().report.search.chosen > 0
    assert_same_as_alone(searched(network(), parallel=LastFirst()))


@pytest.mark.one_backend
def test_processes_of_their_own_find_what_one_finds():
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(1, mp_context=context, initializer=few) as pool:
        assert_same_as_alone(searched(network(), parallel=pool))
        with pytest.raises(ConfigError) as caught:
            searched(network(), parallel=pool, callbacks=[Locked()])
    assert "or the callbacks cannot be sent" in str(caught.value)
    assert "cannot pickle '_thread.lock'" in str(caught.value)


@pytest.mark.one_backend
def test_what_does_not_come_in_time_is_ended_and_the_rest_is_taken(monkeypatch):
    monkeypatch.setattr(parallel, "_GRACE", 0.0)
    executor = LastFirst(lost=1)
    result = searched(network(), parallel=executor, time_budget=3600)
    search = result.report.search
    assert executor.cancelled == 1
    assert search.stopped == "time ran out"
    assert {t.name for t in search.trials} == {"unchanged", "prune, int8"}
    assert search.chosen > 0
    assert math.isfinite(search.trials[search.chosen].drop)


class Dying(LastFirst):
    """Its processes die at their work, or when some of it was handed in.

    Args:
        most: how many things can be handed in.
    """

    def __init__(self, most):
        super().__init__()
        self.most = most

    def submit(self, fn, /, *args, **kwargs):
        if len(self.waiting) == self.most:
            raise BrokenExecutor("a process is gone")
        return super().submit(fn, *args, **kwargs)

    def _result(self, future, timeout):
        raise BrokenExecutor("a process is gone")


@pytest.mark.one_backend
@pytest.mark.parametrize("most", [1, 2])
def test_a_process_that_dies_is_one_clear_error_and_nothing_goes_on(most):
    executor = Dying(most)
    told = refused_by(executor)
    assert "process of the search died" in told
    assert told.endswith("Received: a process is gone")
    assert executor.cancelled == most


def test_a_process_makes_layers_of_the_types_that_this_one_makes():
    task = SearchTask(network(), Target({}), None, Context(()), held=None)
    before = keras.config.dtype_policy()
    try:
        keras.config.set_dtype_policy("mixed_bfloat16")
        setup = pickle.dumps(SharedSetup.of(task))
        keras.config.set_dtype_policy("float32")  # as in a process that starts anew
        unpacked = pickle.loads(setup).unpacked(math.inf)
        assert keras.config.dtype_policy().name == "mixed_bfloat16"
    finally:
        keras.config.set_dtype_policy(before)
    assert unpacked.original.layers[-1].compute_dtype == "float32"  # as it was made


class Locked(keras.callbacks.Callback):
    def __init__(self):
        super().__init__()
        self.lock = threading.Lock()


def refused_by(executor, **others):
    with pytest.raises(ConfigError) as caught:
        searched(network(), parallel=executor, **others)
    return str(caught.value)


@pytest.mark.one_backend
def test_where_trials_cannot_run_is_one_clear_error():
    assert "Received: parallel='dask'" in refused_by("dask")
    with ThreadPoolExecutor(1) as threads:
        assert "threads would share random number generators" in refused_by(threads)
    limits = {"target": {"latency_ms": 1.0}, "max_drop": None}
    assert "distort latency measurements" in refused_by(LastFirst(), **limits)
    with pytest.raises(
        ConfigError,
        match="`parallel` is only available in a search.*parallel='isolated'",
    ):
        km.compress(network(), km.Quantize(), parallel="isolated")


@pytest.mark.one_backend
def test_a_process_on_another_backend_is_refused(backend, monkeypatch):
    unpacked = SharedSetup.unpacked
    monkeypatch.setattr(
        SharedSetup,
        "unpacked",
        lambda setup, until: unpacked(replace(setup, backend="other"), until),
    )
    told = refused_by(LastFirst())
    assert (
        f"KERAS_BACKEND=other in each process. Received: KERAS_BACKEND={backend}"
        in told
    )


@pytest.mark.one_backend
def test_a_process_that_is_a_fork_is_refused(monkeypatch):
    monkeypatch.setattr(parallel, "_PROCESS", -1)
    assert "multiprocessing.get_context('spawn')" in refused_by(LastFirst())
