"""MemoryMonitor: the first step, validation, evaluate and predict, each by itself."""

import copy
import itertools
from types import SimpleNamespace

import keras
import pytest

from kerasmem.callbacks import MemoryMonitor
from kerasmem.memory import peaks as peaks_module
from kerasmem.records import RunInfo
from tests.callbacks.fakes import Allocator, FakeDevices


class Use(keras.callbacks.Callback):
    """Has the device use 100 in the first step, 60 in later ones, 80 in tests."""

    def __init__(self, allocator):
        super().__init__()
        self.allocator = allocator
        self.size = 100
        allocator.use(10)

    def on_train_batch_begin(self, batch, logs=None):
        self.allocator.spike(self.size)
        self.size = 60

    def on_test_batch_begin(self, batch, logs=None):
        self.allocator.spike(80)

    def on_predict_batch_begin(self, batch, logs=None):
        self.allocator.spike(70)

    # Not in a thread behind the batch: this one is not `async_safe`.
    def on_train_batch_end(self, batch, logs=None): ...

    def on_test_batch_end(self, batch, logs=None): ...

    def on_predict_batch_end(self, batch, logs=None): ...


def peaks(monitor):
    return [
        (record.phase, record.epoch, record.batch, record.devices[0].peak_bytes)
        for record in monitor.records
    ]


def test_the_first_step_is_told_apart_and_loses_nothing_of_the_epoch(fit, devices):
    allocator = devices(Allocator())
    monitor = MemoryMonitor()

    fit(monitor, Use(allocator), epochs=2)

    first, second = (record.devices[0] for record in monitor.records)
    assert (first.first_step_peak_bytes, first.later_peak_bytes) == (100, 60)
    assert first.peak_bytes == max(first.first_step_peak_bytes, first.later_peak_bytes)
    assert second.peak_bytes == 60
    assert second.first_step_peak_bytes is second.later_peak_bytes is None
    assert {first.current_bytes, second.current_bytes} == {10}


@pytest.mark.one_backend
def test_every_fit_has_a_first_step(fit, devices):
    allocator = devices(Allocator())
    monitor = MemoryMonitor()

    fit(monitor, Use(allocator))
    fit(monitor, Use(allocator))

    found = [record.devices[0].first_step_peak_bytes for record in monitor.records]
    assert found == [100, 100]


@pytest.mark.one_backend
def test_where_no_peak_can_be_reset_the_later_steps_are_unknown(fit, devices):
    allocator = devices(Allocator(can_reset=False))
    monitor = MemoryMonitor()

    fit(monitor, Use(allocator))

    (reading,) = monitor.records[0].devices
    assert (reading.first_step_peak_bytes, reading.later_peak_bytes) == (100, None)
    assert (reading.peak_bytes, reading.peak_was_reset) == (100, False)


def test_validation_has_a_record_and_is_part_of_the_epoch(fit, devices, data):
    allocator = devices(Allocator())
    monitor = MemoryMonitor()

    fit(monitor, Use(allocator), epochs=2, validation_data=data)

    assert peaks(monitor) == [
        ("validation", 0, None, 80),
        ("train", 0, None, 100),
        ("validation", 1, None, 80),
        ("train", 1, None, 80),
    ]
    assert monitor.records[1].devices[0].later_peak_bytes == 80


def test_evaluate_has_a_record_and_returns_what_it_did(make_model, devices, data):
    allocator = devices(Allocator())
    monitor = MemoryMonitor()
    model = make_model()
    model.compile("sgd", "mse")
    options = {"batch_size": 2, "verbose": 0}

    plain = model.evaluate(*data, **options)
    watched = model.evaluate(*data, callbacks=[monitor, Use(allocator)], **options)
    as_dict = model.evaluate(*data, callbacks=[monitor], return_dict=True, **options)

    assert watched == plain
    assert as_dict == {"loss": plain}
    assert peaks(monitor) == [("evaluate", 0, None, 80), ("evaluate", 0, None, 10)]


def test_predict_has_a_record(make_model, devices, data):
    allocator = devices(Allocator())
    monitor = MemoryMonitor()

    callbacks = [monitor, Use(allocator)]
    make_model().predict(data[0], verbose=0, callbacks=callbacks)

    assert peaks(monitor) == [("predict", 0, None, 70)]
    assert monitor.records[0].host.peak_bytes >= monitor.records[0].host.rss_bytes > 0


def test_every_n_batches_there_is_a_record_in_each_phase(make_model, devices, data):
    devices(FakeDevices())
    monitor = MemoryMonitor(every=3)
    model = make_model()
    model.compile("sgd", "mse")
    options = {"batch_size": 2, "verbose": 0, "callbacks": [monitor]}

    model.fit(*data, validation_data=data, **options)
    model.evaluate(*data, **options)
    model.predict(data[0], **options)

    found = [(record.phase, record.batch) for record in monitor.records]
    phases = ("train", "validation", "evaluate", "predict")
    assert sorted(found, key=str) == sorted(
        ((phase, batch) for phase in phases for batch in (2, 5, None)), key=str
    )


def test_predict_inside_of_a_fit_leaves_the_fit_its_peak(fit, devices, data):
    allocator = devices(Allocator())
    monitor = MemoryMonitor()

    class Predict(keras.callbacks.Callback):
        def on_epoch_end(self, epoch, logs=None):
            callbacks = [monitor, Use(allocator)]
            self.model.predict(data[0], verbose=0, callbacks=callbacks)

    fit(Predict(), monitor, Use(allocator), epochs=2)

    assert peaks(monitor) == [
        ("predict", 0, None, 70),
        ("train", 0, None, 100),
        ("predict", 1, None, 70),
        ("train", 1, None, 70),
    ]


def test_evaluate_works_after_a_fit_that_was_broken_off(make_model, devices, data):
    devices(FakeDevices())

    class BreakOff(keras.callbacks.Callback):
        def on_epoch_end(self, epoch, logs=None):
            raise KeyboardInterrupt

    monitor = MemoryMonitor()
    model = make_model()
    model.compile("sgd", "mse")
    with pytest.raises(KeyboardInterrupt):
        model.fit(*data, verbose=0, callbacks=[monitor, BreakOff()])
    model.evaluate(*data, verbose=0, callbacks=[monitor])

    assert [record.phase for record in monitor.records] == ["train", "evaluate"]


@pytest.mark.one_backend
def test_a_record_says_when_it_was_made(fit, devices, monkeypatch):
    devices(FakeDevices())
    monitor = MemoryMonitor()
    # A real clock may be set back meanwhile.
    seconds = itertools.count(1_800_000_000)
    clock = SimpleNamespace(time=lambda: float(next(seconds)))
    monkeypatch.setattr(peaks_module, "time", clock)

    fit(monitor, epochs=3)

    times = [record.time for record in monitor.records]
    assert times == [1_800_000_000, 1_800_000_001, 1_800_000_002]


def test_the_head_of_the_run_tells_what_was_run(make_model, devices, data, tmp_path):
    devices(FakeDevices())
    model = make_model()
    model.compile("sgd", "mse")

    model.fit(*data, verbose=0, callbacks=[MemoryMonitor(log_dir=tmp_path)])

    info = RunInfo.from_json((tmp_path / "run.json").read_text())
    parameters = 6 * 5 + 5 + 5 * 3 + 3
    assert (info.parameters, info.weight_bytes) == (parameters, 4 * parameters)
    assert (info.model, info.processes) == (model.name, 1)
    assert info.backend == keras.backend.backend()
    assert info.versions["keras"] == keras.__version__


def test_a_model_that_the_first_step_builds_has_its_size_told(devices, data, tmp_path):
    devices(FakeDevices())
    model = keras.Sequential([keras.layers.Dense(3)])
    model.compile("sgd", "mse")

    model.fit(*data, verbose=0, callbacks=[MemoryMonitor(log_dir=tmp_path)])

    info = RunInfo.from_json((tmp_path / "run.json").read_text())
    assert (info.parameters, info.weight_bytes) == (21, 84)


@pytest.mark.one_backend
def test_another_model_does_not_complete_the_head_of_a_run(devices, data, tmp_path):
    devices(FakeDevices())
    head = RunInfo("first", 0, 0, "torch", {}, "2026-11-20T12:00:00+00:00", 1)
    (tmp_path / "run.json").write_text(head.to_json())
    model = keras.Sequential([keras.layers.Dense(3)], name="second")
    model.compile("sgd", "mse")

    model.fit(*data, verbose=0, callbacks=[MemoryMonitor(log_dir=tmp_path)])

    assert RunInfo.from_json((tmp_path / "run.json").read_text()) == head


@pytest.mark.one_backend
def test_a_copy_for_another_trial_is_a_monitor_of_its_own(fit, devices):
    # Keras Tuner copies the callbacks that it is given.
    devices(FakeDevices())
    monitor = MemoryMonitor()
    copied = copy.deepcopy(monitor)
    fit(copied, epochs=2)

    assert (len(copied.records), monitor.records) == (2, [])


@pytest.mark.one_backend
def test_the_head_of_a_run_is_written_once(fit, devices, tmp_path):
    devices(FakeDevices())
    fit(MemoryMonitor(log_dir=tmp_path))
    head = (tmp_path / "run.json").read_text()

    fit(MemoryMonitor(log_dir=tmp_path), MemoryMonitor(log_dir=tmp_path))

    assert (tmp_path / "run.json").read_text() == head
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        "memory.jsonl",
        "run.json",
    ]


def test_between_epochs_the_model_is_not_touched(fit, devices, data):
    # On JAX that would move the whole state of the model, in every batch.
    class Counting(MemoryMonitor):
        reads = 0

        @property
        def model(self):
            Counting.reads += 1
            return super().model

    devices(FakeDevices())
    reads = []
    for batch_size in (16, 2):
        Counting.reads = 0
        monitor = Counting(every="batch")
        fit(monitor, epochs=2, batch_size=batch_size, validation_data=data)
        reads.append(Counting.reads)
        assert len(monitor.records) == 2 * 2 * (16 // batch_size + 1)
    assert reads[0] == reads[1]
