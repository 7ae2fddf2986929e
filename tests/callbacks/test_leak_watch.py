"""What is told of memory that grows from epoch to epoch, and what is not."""

import gc
from collections import Counter

import keras
import numpy as np
import pytest

from kerasmem.callbacks import leak_watch
from kerasmem.callbacks.leak_watch import HOST, OBJECTS, TRACES, LeakWatch
from kerasmem.memory.census import Census
from kerasmem.units import MIB

pytestmark = pytest.mark.one_backend

NOTHING = Census(Counter(), Counter(), frozenset())


class Kept:
    """A kind of its own."""


@pytest.fixture
def counting(monkeypatch):
    """Have objects really counted. The process of a whole suite has very many."""
    monkeypatch.setattr("kerasmem.memory.references._SECONDS", 60.0)
    gc.collect()  # what other tests left must not be freed while it counts


@pytest.fixture(autouse=True)
def _counted_only_where_it_matters(request, monkeypatch):
    if "counting" not in request.fixturenames:
        monkeypatch.setattr(leak_watch, "census", lambda: NOTHING)


def watched(epochs, **series):
    """Return what is told over the epochs; a series is a function of the epoch."""
    watch = LeakWatch("MemoryMonitor")
    names = {"host": HOST, "objects": OBJECTS, "traces": TRACES, "gpu": "GPU:0"}
    told = []
    for epoch in range(epochs):
        values = {names[name]: value(epoch) for name, value in series.items()}
        told += watch.after_step(epoch, lambda values=values: values)
    return told


def test_a_device_that_leaks_is_told_once_with_its_slope_and_its_begin():
    told = watched(30, gpu=lambda epoch: (800 + 4 * max(epoch - 3, 0)) * MIB)

    (finding,) = told
    assert finding.text == (
        "Memory in use on GPU:0 rises by 4.00 MiB an epoch since epoch 4, to 828 MiB."
    )
    assert (finding.kind, finding.layer) == ("leak", None)
    assert (finding.epoch, finding.monitor) == (10, "MemoryMonitor")


def test_what_rises_with_it_is_named():
    (finding,) = watched(
        12,
        host=lambda epoch: (500 + 2 * epoch) * MIB,
        traces=lambda epoch: 1 + epoch,
        gpu=lambda epoch: 800 * MIB,
    )
    assert finding.text == (
        "The resident memory of the process rises by 2.00 MiB an epoch since epoch 3, "
        "to 518 MiB. Also rising: traces of the training step by 1.0. Every trace "
        "stays in memory. Use one shape and dtype for all batches."
    )


def test_two_devices_are_two_series():
    told = watched(
        30,
        gpu=lambda epoch: epoch * MIB,
        host=lambda epoch: max(0, epoch - 10) * MIB,
    )
    assert [finding.epoch for finding in told] == [9, 17]


@pytest.mark.usefixtures("counting")
def test_the_kinds_of_python_objects_that_pile_up_are_named():
    kept = []

    def objects(epoch):
        kept.extend(Kept() for _ in range(2000))
        return 100_000 + len(kept)

    (finding,) = watched(10, objects=objects)

    assert finding.text.startswith(
        "The number of blocks of Python objects rises by 2,000 an epoch since epoch 3, "
    )
    assert f"Growth per epoch: {Kept.__module__}.Kept by 2,000" in finding.text


@pytest.mark.usefixtures("counting")
def test_a_growing_array_is_named_with_its_bytes_and_its_holder():
    keep = keras.callbacks.Callback()
    keep.curves = {"loss": np.zeros(0)}

    def host(epoch):
        keep.curves["loss"] = np.zeros(MIB // 4 * (epoch + 1))
        return (500 + 2 * epoch) * MIB

    (finding,) = watched(10, host=host)

    assert "Growth per epoch: numpy.ndarray by 0.0 (2.00 MiB)" in finding.text
    assert finding.text.endswith("Held by the callback Callback, in .curves['loss'].")


def test_objects_that_python_does_not_list_are_called_so():
    (finding,) = watched(10, objects=lambda epoch: 100_000 + 9000 * epoch)

    assert finding.text.endswith(
        "Their types are not tracked by Python, such as numbers and text."
    )


def test_objects_are_counted_by_kind_only_on_suspicion(monkeypatch):
    censuses = []
    monkeypatch.setattr(leak_watch, "census", lambda: censuses.append(1))

    watched(40, objects=lambda epoch: 100_000 + 5000 * (epoch % 4), gpu=lambda e: 9)

    assert censuses == []


def test_memory_that_waits_for_the_garbage_collector_is_no_leak(monkeypatch):
    garbage = [0]
    monkeypatch.setattr(leak_watch.gc, "collect", lambda: garbage.__setitem__(0, 0))

    def measure():
        return {OBJECTS: 100_000.0 + garbage[0], HOST: 500.0 * MIB + 1000 * garbage[0]}

    watch, told = LeakWatch("MemoryMonitor"), []
    for epoch in range(60):
        garbage[0] += 3000
        told += watch.after_step(epoch, measure)

    assert told == []


@pytest.mark.parametrize(
    ("name", "growth"), [("gpu", 60_000), ("host", 250_000), ("objects", 900)]
)
def test_a_rise_too_small_to_matter_is_not_told(name, growth):
    assert watched(40, **{name: lambda epoch: 10**8 + growth * epoch}) == []


def test_a_series_that_comes_late_is_told_by_its_own_epochs():
    watch, told = LeakWatch("MemoryMonitor"), []
    for epoch in range(20):
        late = {TRACES: epoch} if epoch >= 6 else {}
        told += watch.after_step(epoch, lambda late=late: {"GPU:0": 5.0} | late)

    (finding,) = told
    assert "since epoch 9," in finding.text
