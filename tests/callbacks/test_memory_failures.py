"""MemoryMonitor: whatever fails in it, the training is the same to the last bit."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import keras
import numpy as np
import pytest

from kerasmem.callbacks import MemoryMonitor, memory_monitor, run_log
from kerasmem.errors import KerasMemWarning
from kerasmem.files import run_dir
from kerasmem.graph.values import to_numpy
from kerasmem.records import MemoryRecord
from tests.callbacks.fakes import FakeDevices

pytestmark = pytest.mark.one_backend

EPOCHS = 2


class Broken(FakeDevices):
    """A backend of which one method fails, from a call on."""

    def __init__(self, method, calls_before=0):
        super().__init__()
        working, calls = getattr(self, method), []

        def fail(*arguments):
            calls.append(1)
            if len(calls) > calls_before:
                raise RuntimeError("device lost")
            return working(*arguments)

        setattr(self, method, fail)


def trained(*callbacks):
    """Train a small network, always the same; return its weights."""
    keras.utils.set_random_seed(11)
    model = keras.Sequential([keras.Input((6,)), keras.layers.Dense(3)])
    model.compile("adam", "mse")
    x, y = np.random.normal(size=(8, 6)), np.random.normal(size=(8, 3))
    options = {"batch_size": 2, "epochs": EPOCHS, "verbose": 0}
    model.fit(x, y, validation_data=(x, y), callbacks=list(callbacks), **options)
    assert int(model.optimizer.iterations) == 4 * EPOCHS
    return [to_numpy(weight) for weight in model.weights]


@pytest.fixture(scope="module")
def bare():
    """The weights without a monitor."""
    return trained()


@pytest.fixture
def trains_alike(bare):
    """Assert that training with a monitor warns once and changes no bit."""

    def check(monitor, match):
        with pytest.warns(KerasMemWarning, match=match) as caught:
            watched = trained(monitor)
        assert len([w for w in caught if w.category is KerasMemWarning]) == 1
        for expected, found in zip(bare, watched, strict=True):
            np.testing.assert_array_equal(found, expected)

    return check


@pytest.mark.parametrize(
    ("method", "calls_before"),
    [
        ("device_memory", 0),
        ("device_memory", 2),
        ("reset_device_peak", 0),
        ("reset_device_peak", 1),
        ("processes", 0),
        ("cuda_ordinals", 0),
        ("input_bytes", 1),
        ("traces", 0),
    ],
)
def test_a_backend_that_fails(trains_alike, devices, method, calls_before):
    devices(Broken(method, calls_before))
    trains_alike(MemoryMonitor(), "RuntimeError: device lost. Training continues.")


@pytest.mark.parametrize(
    ("module", "failing"),
    [
        (memory_monitor, "host_peak"),
        (run_log, "begin_run"),
        (memory_monitor, "series"),
        (memory_monitor, "figures"),
    ],
)
def test_a_part_of_the_monitor_that_fails(
    trains_alike, devices, monkeypatch, module, failing
):
    def fail(*arguments, **keywords):
        raise ZeroDivisionError("nobody thought of this")

    devices(FakeDevices())
    monkeypatch.setattr(module, failing, fail)
    trains_alike(MemoryMonitor(), "ZeroDivisionError: nobody thought of this")


def test_a_reader_of_the_other_processes_that_fails(trains_alike, devices, monkeypatch):
    class Lost:
        def newest(self):
            raise TimeoutError("no route to host")

    devices(FakeDevices())
    monitor = MemoryMonitor()
    monkeypatch.setattr(monitor, "_other_processes", Lost)
    trains_alike(monitor, "could not read the memory of the other processes: Ti")


@pytest.mark.parametrize("name", ["memory.jsonl", "run.json"])
def test_a_full_disk(trains_alike, devices, monkeypatch, tmp_path, name):
    devices(FakeDevices())
    if name == "memory.jsonl":
        monkeypatch.setattr(run_dir, "open_regular", lambda *_: full_disk())
    else:
        monkeypatch.setattr(Path, "write_text", no_space)
    monitor = MemoryMonitor(log_dir=tmp_path, host=False)

    trains_alike(monitor, rf"could not write {name}: .*No space left on device")
    assert len(monitor.records) == 2 * EPOCHS


def full_disk():
    return Path("/dev/full").open("ab")


def no_space(path, *arguments, **keywords):
    raise OSError(28, "No space left on device")


def test_a_folder_without_permission(trains_alike, devices):
    # Nobody may make a file there, not even root.
    devices(FakeDevices())
    monitor = MemoryMonitor(log_dir="/proc/self")
    trains_alike(monitor, r"could not write run\.json: ")


def test_a_line_that_was_cut_off_does_not_spoil_the_next(devices, tmp_path, fit):
    devices(FakeDevices())
    (tmp_path / "memory.jsonl").write_text('{"epoch": 7, "bat')
    monitor = MemoryMonitor(log_dir=tmp_path)

    fit(monitor, epochs=2)

    lines = (tmp_path / "memory.jsonl").read_text().splitlines()
    assert lines[0] == '{"epoch": 7, "bat'
    assert [MemoryRecord.from_json(line) for line in lines[1:]] == monitor.records


KILLED = """
import os, signal, sys
import numpy as np, keras
import kerasmem as km

class Kill(keras.callbacks.Callback):
    def on_train_batch_end(self, batch, logs=None):
        if len(monitor.records) == 7:
            os.kill(os.getpid(), signal.SIGKILL)

monitor = km.callbacks.MemoryMonitor(every=2, log_dir=sys.argv[1])
model = keras.Sequential([keras.Input((3,)), keras.layers.Dense(1)])
model.compile("sgd", "mse")
x, y = np.ones((16, 3), "float32"), np.ones((16, 1), "float32")
model.fit(x, y, batch_size=2, epochs=9, verbose=0, callbacks=[monitor, Kill()])
"""


def test_a_run_that_is_killed_keeps_what_it_had(tmp_path):
    child = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", KILLED, str(tmp_path)],
        env=os.environ,
        capture_output=True,
        timeout=600,
        check=False,
    )
    assert child.returncode == -signal.SIGKILL, child.stderr.decode()

    text = (tmp_path / "memory.jsonl").read_text()
    records = [MemoryRecord.from_json(line) for line in text.splitlines()]
    assert text.endswith("\n")
    assert [(record.epoch, record.batch) for record in records] == [
        (0, 1),
        (0, 3),
        (0, 5),
        (0, 7),
        (0, None),
        (1, 1),
        (1, 3),
    ]
    assert (tmp_path / "run.json").exists()
