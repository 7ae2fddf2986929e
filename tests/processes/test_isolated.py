"""A function in a process of its own."""

import os
import signal
import sys
import threading
import time

import keras
import numpy as np
import psutil
import pytest

import kerasmem as km
from kerasmem.errors import ChildDiedError, ConfigError


def test_a_training_comes_back_with_history_and_model():
    def train(units):
        model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(units)])
        model.compile("sgd", "mse")
        x = np.ones((32, 4), "float32")
        history = model.fit(x, np.ones((32, units)), epochs=2, verbose=0)
        return history, model, model.predict(x, verbose=0), os.getpid()

    history, model, predictions, process = km.memory.isolated(train, 3)
    assert process != os.getpid()
    assert history.epoch == [0, 1]
    assert len(history.history["loss"]) == 2
    x = np.ones((32, 4), "float32")
    np.testing.assert_allclose(model.predict(x, verbose=0), predictions, rtol=1e-6)


class OfTwoArgumentsError(Exception):
    """Can be pickled, but not unpickled, like many exceptions of other packages."""

    def __init__(self, one, two):
        super().__init__(f"{one} and {two}")


class CannotBeRead:
    def __reduce__(self):
        return int, ("no number",)


def test_as_a_decorator_each_call_runs_elsewhere_and_errors_come_back():
    @km.memory.isolated
    def work(what):
        """Do it."""
        if what == "error":
            raise KeyError(what)
        if what == "two arguments":
            raise OfTwoArgumentsError(3, 4)
        if what == "lock in an error":
            error = ValueError("with a lock")
            error.lock = threading.Lock()
            raise error
        if what == "cannot be read":
            return CannotBeRead()
        if what == "lock":
            return threading.Lock()
        if what == "die":
            os.kill(os.getpid(), signal.SIGKILL)
        return what

    assert (work.__name__, work.__doc__) == ("work", "Do it.")
    with pytest.raises(KeyError, match="error") as raised:
        work("error")
    assert "In a child process" in raised.value.__notes__[0]
    with pytest.raises(ChildDiedError, match="OfTwoArgumentsError: 3 and 4") as lost:
        work("two arguments")
    assert "in work" in lost.value.stderr
    with pytest.raises(ChildDiedError, match="ValueError: with a lock"):
        work("lock in an error")
    with pytest.raises(
        ConfigError, match="The result cannot be sent to another process"
    ):
        work("cannot be read")
    with pytest.raises(
        ConfigError, match="The result cannot be sent to another process"
    ):
        work("lock")
    with pytest.raises(ChildDiedError, match="signal 9"):
        work("die")


@pytest.mark.one_backend
def test_an_argument_that_cannot_go_is_named_before_a_process_is_begun():
    with pytest.raises(ConfigError, match="cannot be sent to another process"):
        km.memory.isolated(len, threading.Lock())


@pytest.mark.one_backend
def test_a_result_in_place_of_a_function_is_refused():
    with pytest.raises(ConfigError, match=r"isolated\(train, 0.1\)"):
        km.memory.isolated(3)


@pytest.mark.one_backend
@pytest.mark.usefixtures("new_interpreter")
def test_a_call_that_takes_too_long_is_ended():
    def sleep():
        time.sleep(600)

    with pytest.raises(TimeoutError, match="The function 'sleep' took more than 2 s"):
        km.memory.isolated(sleep, time_limit=2)()


@pytest.mark.one_backend
@pytest.mark.usefixtures("new_interpreter")
def test_a_process_that_has_answered_and_does_not_end_is_ended(monkeypatch):
    monkeypatch.setattr("kerasmem.processes._SECONDS_TO_END", 0.5)

    def begin_a_thread():
        threading.Thread(target=time.sleep, args=(600,)).start()
        return os.getpid()

    process = km.memory.isolated(begin_a_thread)()
    assert not psutil.pid_exists(process)


@pytest.mark.one_backend
def test_a_process_of_its_own_reads_nothing_of_ours():
    def read():
        return sys.stdin.read()

    assert km.memory.isolated(read)() == ""
