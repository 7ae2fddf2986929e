"""Leaks in a real `fit` are told; a healthy one, garbage and all, tells nothing."""

import gc
import warnings
from collections import Counter

import keras
import numpy as np
import pytest

from kerasmem.callbacks import MemoryMonitor
from kerasmem.errors import KerasMemWarning
from kerasmem.memory.census import Census
from kerasmem.records import Finding
from kerasmem.units import MIB
from tests.callbacks.fakes import FakeDevices

EPOCHS = 12


class Item:
    """Something that a callback forgets to let go: one block of memory."""

    __slots__ = ("other",)


class Keep(keras.callbacks.Callback):
    """Keeps 20,000 objects more with every epoch."""

    def __init__(self):
        super().__init__()
        self.kept = []

    def on_epoch_begin(self, epoch, logs=None):
        self.kept.append([Item() for _ in range(20_000)])


class Litter(keras.callbacks.Callback):
    """Makes objects that hold each other, which only the garbage collector frees."""

    def on_epoch_begin(self, epoch, logs=None):
        for _ in range(2000):
            first, second = Item(), Item()
            first.other, second.other = second, first


@pytest.fixture
def counting(monkeypatch):
    """Have objects really counted. The process of a whole suite has very many."""
    monkeypatch.setattr("kerasmem.memory.references._SECONDS", 60.0)
    gc.collect()  # what other tests left must not be freed while it counts


@pytest.fixture(autouse=True)
def _counted_only_where_it_matters(request, monkeypatch):
    if "counting" not in request.fixturenames:
        nothing = Census(Counter(), Counter(), frozenset())
        monkeypatch.setattr("kerasmem.callbacks.leak_watch.census", lambda: nothing)


@pytest.fixture
def watched_fit(fit, devices):
    """Return a function that fits with a monitor and returns the monitor."""

    def run(*callbacks, **options):
        devices(FakeDevices())
        gc.collect()  # what other tests left must not be freed during the fit
        monitor = MemoryMonitor(**options)
        fit(monitor, *callbacks, epochs=EPOCHS)
        return monitor

    return run


@pytest.mark.one_backend
@pytest.mark.usefixtures("counting")
def test_objects_that_are_kept_are_told_once_with_their_slope_and_their_holder(
    watched_fit, tmp_path, monkeypatch
):
    keep = Keep()
    # Said, not read: what other tests in this process give back hides what is kept.
    monkeypatch.setattr(
        "kerasmem.callbacks.leak_watch.resident_bytes",
        lambda: 500 * MIB + 8 * MIB * len(keep.kept),
    )
    with pytest.warns(KerasMemWarning) as caught:
        monitor = watched_fit(keep, log_dir=tmp_path)

    (finding,) = monitor.findings
    assert finding.text.startswith("The resident memory of the process rises by ")
    rate = float(finding.text.split(" rises by ")[1].split()[0])
    assert rate == pytest.approx(8)
    rate = float(
        finding.text.split("Python objects by ")[1].split(".")[0].replace(",", "")
    )
    assert rate == pytest.approx(20_000, rel=0.1)
    assert f"Growth per epoch: {Item.__module__}.Item by " in finding.text
    assert "Held by the callback Keep, in .kept[" in finding.text

    texts = [str(w.message) for w in caught if w.category is KerasMemWarning]
    assert texts == [finding.text]
    lines = (tmp_path / "findings.jsonl").read_text().splitlines()
    assert [Finding.from_json(line) for line in lines] == monitor.findings


@pytest.mark.usefixtures("counting")
def test_tensors_that_are_kept_are_named_with_their_bytes_and_their_holder(
    fit, monkeypatch
):
    kept, epochs = [], []  # the reading of the process holds only the second
    keep = keras.callbacks.LambdaCallback(
        on_epoch_begin=lambda epoch, logs: kept.append(keras.ops.ones((MIB,))),
        on_epoch_end=lambda epoch, logs: epochs.append(epoch),
    )
    monkeypatch.setattr(
        "kerasmem.callbacks.leak_watch.resident_bytes",
        lambda: (500 + 4 * len(epochs)) * MIB,
    )
    monitor = MemoryMonitor()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", KerasMemWarning)
        fit(monitor, keep, epochs=EPOCHS)

    text = monitor.findings[-1].text
    assert " by 1.0 (4.00 MiB)" in text
    assert "Held by kept[" in text


def test_a_healthy_fit_tells_nothing(watched_fit):
    assert watched_fit().findings == []


def test_what_rises_over_several_fits_is_told_by_epochs(fit, devices, monkeypatch):
    devices(FakeDevices())
    fits = []
    monkeypatch.setattr(
        "kerasmem.callbacks.leak_watch.resident_bytes",
        lambda: (500 + 3 * len(fits)) * MIB,
    )
    monitor = MemoryMonitor()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", KerasMemWarning)
        for number in range(EPOCHS):
            fit(monitor, epochs=1)
            fits.append(number)
    (finding,) = monitor.findings
    assert " rises by 3.00 MiB an epoch since epoch " in finding.text


@pytest.mark.parametrize("call", ["evaluate", "predict"])
def test_what_rises_from_call_to_call_is_told_once(monkeypatch, call):
    calls = []
    monkeypatch.setattr(
        "kerasmem.callbacks.leak_watch.resident_bytes",
        lambda: (500 + 3 * len(calls)) * MIB,
    )
    monitor = MemoryMonitor()
    model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1)])
    model.compile("sgd", "mse", run_eagerly=keras.backend.backend() != "jax")
    x, y = np.ones((4, 2)), np.ones((4, 1))
    data = {"x": x} if call == "predict" else {"x": x, "y": y}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", KerasMemWarning)
        for number in range(EPOCHS):
            getattr(model, call)(**data, verbose=0, callbacks=[monitor])
            calls.append(number)

    (finding,) = monitor.findings
    assert finding.text.startswith(
        "The resident memory of the process rises by 3.00 MiB a call since call 3, "
    )
    page = monitor._repr_html_()
    assert "rises by 3.00 MiB a call since call 3, " in page
    assert f"Call by call of {call}: host memory" in page


def test_validation_within_a_fit_is_no_call(monkeypatch):
    reads = []
    monkeypatch.setattr(
        "kerasmem.callbacks.memory_monitor.MemoryMonitor._end_call",
        lambda self: reads.append(1),
    )
    model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1)])
    model.compile("sgd", "mse", run_eagerly=keras.backend.backend() != "jax")
    x, y = np.ones((4, 2)), np.ones((4, 1))
    model.fit(
        x, y, epochs=3, verbose=0, validation_data=(x, y), callbacks=[MemoryMonitor()]
    )
    assert reads == []
    model.evaluate(x, y, verbose=0, callbacks=[MemoryMonitor()])
    assert len(reads) == 1


@pytest.mark.one_backend
def test_garbage_is_no_leak(watched_fit):
    assert watched_fit(Litter()).findings == []


@pytest.mark.one_backend
def test_without_the_host_its_memory_is_not_watched(watched_fit):
    with pytest.warns(KerasMemWarning, match="Python objects"):
        monitor = watched_fit(Keep(), host=False)
    assert len(monitor.findings) == 1
