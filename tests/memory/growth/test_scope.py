"""What stayed, who holds it, and the usual causes by name."""

import multiprocessing
import os
import signal
import subprocess
import threading
import time

import keras
import numpy as np
import psutil
import pytest

import kerasmem as km
from kerasmem.errors import ConfigError


def small_model(units=8):
    model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(units)])
    model.compile("sgd", "mse")
    return model


def kinds(scope):
    return {finding.kind for finding in scope.findings}


X, Y = np.ones((32, 4), "float32"), np.ones((32, 8), "float32")


def test_an_array_that_stays_is_named_with_its_bytes():
    kept = []
    with km.memory.scope("trial") as scope:
        kept.append(np.zeros(1000))
        np.ones(100_000)
    (one,) = [each for each in scope.stayed if each.is_own]
    assert (one.held_by, one.array_bytes, one.number) == ("kept[0]", 8000, 1)
    assert one.kinds == {"numpy.ndarray": 1}
    assert scope.findings == []


def test_nothing_stays_of_what_was_dropped():
    with km.memory.scope() as warm_up:
        small_model().fit(X, Y, verbose=0)
    with km.memory.scope() as scope:
        small_model().fit(X, Y, verbose=0)
    assert [one for one in scope.stayed if one.is_own] == []
    assert scope.findings == warm_up.findings == []


def test_models_in_a_list_are_one_group_with_the_bytes_of_their_weights():
    models = []
    with km.memory.scope("search") as scope:
        models.extend(small_model(units) for units in (1, 2, 3))
    one = next(each for each in scope.stayed if each.held_by.startswith("models"))
    assert (one.held_by, one.number) == ("models[...]", 3)
    assert one.kinds["keras.Sequential"] == 3
    weights = sum(4 * int(np.prod(w.shape)) for m in models for w in m.weights)
    assert weights <= one.array_bytes <= weights + 256  # and the optimizers' counters
    assert "models" in kinds(scope)
    (finding,) = [f for f in scope.findings if f.kind == "models"]
    assert "3 models stayed" in finding.text
    assert "models[...]" in finding.text
    assert "'search'" in finding.text


class OwnModel(keras.Model):
    """A subclassed model of the program's own."""

    def __init__(self):
        super().__init__()
        self.dense = keras.layers.Dense(1)

    def call(self, x):
        return self.dense(x)


def test_models_of_a_class_of_ones_own_are_models():
    models = []
    with km.memory.scope() as scope:
        models.extend(OwnModel() for _ in range(3))
    assert kinds(scope) == {"models"}
    assert len(models) == scope.stayed[0].models


def test_a_callback_that_keeps_arrays_is_told():
    class Keeps(keras.callbacks.Callback):
        def __init__(self):
            super().__init__()
            self.outputs = []

        def on_train_batch_end(self, batch, logs=None):
            self.outputs.append(np.zeros(10_000))

    keeps = Keeps()
    with km.memory.scope() as scope:
        small_model().fit(X, Y, batch_size=8, verbose=0, callbacks=[keeps])
        keeps.set_model(None)
    assert "arrays in a callback" in kinds(scope)
    assert "keeps.outputs[...]" in " ".join(f.text for f in scope.findings)


def test_a_model_in_a_closure_is_told():
    def predictor():
        model = small_model()
        return lambda x: model(x) + 1

    with km.memory.scope() as scope:
        predict = predictor()
    assert callable(predict)
    assert "closure" in kinds(scope)
    assert "predict.<closure model>" in " ".join(f.text for f in scope.findings)


def test_an_optimizer_that_was_kept_is_told():
    def train(optimizer):
        model = small_model(4096)
        model.compile(optimizer, "mse")
        model.fit(X, np.ones((32, 4096), "float32"), verbose=0)

    with km.memory.scope() as scope:
        optimizer = keras.optimizers.Adam()
        train(optimizer)
    assert "optimizer" in kinds(scope)


def test_a_thread_that_still_runs_is_told():
    event = threading.Event()
    with km.memory.scope() as scope:
        thread = threading.Thread(target=event.wait, name="loader")
        thread.start()
    event.set()
    thread.join()
    assert scope.threads == ["loader"]
    assert "workers" in kinds(scope)


@pytest.mark.one_backend
def test_a_child_process_is_told_while_it_runs():
    with km.memory.scope() as scope:
        child = subprocess.Popen(["sleep", "600"])
    assert scope.children == [child.pid]
    assert "workers" in kinds(scope)
    child.kill()
    os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)
    assert scope.children == []  # it has ended, though nobody has asked how
    child.wait()


@pytest.mark.one_backend
def test_what_an_earlier_child_begins_is_not_counted():
    begins = "read go; sleep 600 & echo $!; read go"
    with subprocess.Popen(
        ["/bin/sh", "-c", begins],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as child:
        with km.memory.scope() as scope:
            child.stdin.write("\n")
            child.stdin.flush()
            grandchild = int(child.stdout.readline())
        assert psutil.pid_exists(grandchild)
        assert scope.children == []
        os.kill(grandchild, signal.SIGKILL)
        child.stdin.write("\n")


@pytest.mark.one_backend
def test_a_process_of_a_fork_server_that_was_there_is_told():
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload([])
    first, second = (
        context.Process(target=time.sleep, args=(600,), daemon=True) for _ in range(2)
    )
    first.start()
    with km.memory.scope() as scope:
        second.start()
    assert scope.children == [second.pid]
    for each in (first, second):
        each.kill()
        each.join()


def test_an_open_file_is_listed(tmp_path):
    with km.memory.scope() as scope:
        file = (tmp_path / "log.txt").open("w")
    file.close()
    assert scope.files == [str(tmp_path / "log.txt")]


def test_a_scope_inside_of_a_scope_sees_its_own_part():
    kept = []
    with km.memory.scope("outer") as outer:
        kept.append(np.zeros(10))
        with km.memory.scope("inner") as inner:
            kept.append(np.zeros(20))
    assert [one.array_bytes for one in inner.stayed] == [160]
    assert sum(one.array_bytes for one in outer.stayed) == 240


def test_an_error_ends_the_scope_and_goes_on():
    with pytest.raises(KeyError), km.memory.scope() as scope:
        raise KeyError
    assert scope.stayed == []


def test_a_scope_that_runs_has_no_figures_yet():
    scope = km.memory.scope("later")
    with pytest.raises(ConfigError, match="has no figures yet"):
        _ = scope.stayed


def test_a_scope_needs_a_name():
    with pytest.raises(ConfigError, match="name` of scope must be a non-empty string"):
        km.memory.scope("")
    with pytest.raises(ConfigError, match="name` of scope must be a non-empty string"):
        km.memory.scope(3)


def test_the_table_says_who_holds_what():
    kept = {}
    with km.memory.scope("trial") as scope:
        kept["x"] = np.zeros(1000)
    head, line = scope.table().splitlines()
    assert head.startswith("trial: host ")
    assert "7.81 KiB" in line
    assert "kept['x']" in line
    assert "1 numpy.ndarray" in line


def test_a_scope_without_a_block_reads_what_has_stayed_when_it_is_updated():
    scope = km.memory.scope("process")
    kept = [np.zeros(1000)]
    scope.update()
    assert [one.held_by for one in scope.stayed] == ["kept[0]"]
    kept.append(np.zeros(10))
    scope.update()
    assert [one.array_bytes for one in scope.stayed] == [8080]


def test_what_is_free_is_given_back():
    model = small_model()
    before = model.predict(X, verbose=0)
    with km.memory.scope() as scope:
        pass
    freed = scope.free()
    assert isinstance(freed.host_bytes, int)
    np.testing.assert_array_equal(model.predict(X, verbose=0), before)
