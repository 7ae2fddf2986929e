"""MemoryMonitor: what it writes, and that it never breaks a training."""

import csv
import dataclasses

import keras
import numpy as np
import pytest

from kerasmem import backends
from kerasmem.callbacks import MemoryMonitor, memory_monitor
from kerasmem.errors import ConfigError, KerasMemWarning
from kerasmem.processes.host import SampledPeak, resident_bytes
from kerasmem.records import HostReading, MemoryRecord
from kerasmem.units import MIB
from tests.callbacks.fakes import FakeDevices, NoDevices


@pytest.mark.one_backend
def test_logs_hold_the_fullest_device_in_mib(fit, devices):
    devices(FakeDevices())

    history = fit(MemoryMonitor(host=False), epochs=2)

    assert history["device_peak_mib"] == [5.0, 5.0]
    assert history["device_mib"] == [4.0, 4.0]
    assert "host_peak_mib" not in history


def test_records_keep_whole_bytes_of_every_device(fit, devices):
    devices(FakeDevices())
    monitor = MemoryMonitor()

    history = fit(monitor, epochs=2)

    assert [record.epoch for record in monitor.records] == [0, 1]
    for record, host_peak_mib in zip(
        monitor.records, history["host_peak_mib"], strict=True
    ):
        assert [d.peak_bytes for d in record.devices] == [5 * MIB, 4 * MIB]
        assert record.batch is None
        assert record.host.peak_bytes == host_peak_mib * MIB >= record.host.rss_bytes


@pytest.mark.parametrize("can_reset", [True, False])
def test_a_record_says_whether_the_peak_is_that_of_its_epoch(fit, devices, can_reset):
    fake = devices(FakeDevices(can_reset))
    monitor = MemoryMonitor()

    fit(monitor, epochs=3)

    assert fake.resets == 4  # at every epoch's begin, and behind the first step
    assert {d.peak_was_reset for r in monitor.records for d in r.devices} == {can_reset}


@pytest.mark.parametrize(
    ("every", "batches"),
    [
        ("epoch", [None]),
        ("batch", [0, 1, 2, 3, 4, 5, 6, 7, None]),
        (3, [2, 5, None]),
        (100, [None]),
    ],
)
def test_every_says_after_which_batches_a_record_is_kept(fit, devices, every, batches):
    devices(FakeDevices())
    monitor = MemoryMonitor(every=every)

    fit(monitor)

    found = [record.batch for record in monitor.records]
    assert found[-1] is None
    assert sorted(found[:-1]) == batches[:-1]  # Keras may call batch hooks in threads


@pytest.mark.one_backend
def test_several_steps_per_execution_still_give_a_record_every_n_batches(devices):
    devices(FakeDevices())
    monitor = MemoryMonitor(every=3)
    model = keras.Sequential([keras.layers.Dense(1)])
    model.compile("sgd", steps_per_execution=4)
    monitor.set_model(model)

    monitor.on_train_begin()
    monitor.on_epoch_begin(0)
    for last_batch in (3, 7, 11):  # four steps an execution
        monitor.on_train_batch_end(last_batch)

    assert [record.batch for record in monitor.records] == [3, 7, 11]


@pytest.mark.one_backend
def test_where_nothing_is_counted_one_sentence_says_why(fit, devices):
    devices(NoDevices())
    monitor = MemoryMonitor()

    with pytest.warns(KerasMemWarning, match=r"^Nothing counts here\.$") as caught:
        history = fit(monitor, epochs=2)

    assert len([w for w in caught if w.category is KerasMemWarning]) == 1
    assert monitor.unavailable == "Nothing counts here."
    assert set(history) == {"loss", "host_peak_mib"}


def test_the_running_backend_gives_figures_or_the_reason(fit, backend):
    monitor = MemoryMonitor()
    if backends.current().device_memory():
        history = fit(monitor)
        counts = any(device.counts for device in monitor.records[0].devices)
        assert ("device_peak_mib" in history) == ("device_mib" in history) == counts
        assert monitor.unavailable is None
    else:
        with pytest.warns(KerasMemWarning, match="so device values are missing"):
            history = fit(monitor)
        assert monitor.unavailable == backends.current().why_no_device_memory()
        assert "device_peak_mib" not in history
    assert history["host_peak_mib"][0] > 50  # a framework takes more than that


def test_the_host_peak_sees_a_spike_within_the_epoch_and_forgets_it(fit, devices):
    devices(FakeDevices())
    spike, resident = 200 * MIB, []

    class Spike(keras.callbacks.Callback):
        def on_epoch_begin(self, epoch, logs=None):
            if epoch == 2:
                held = np.ones(spike // 8)  # touched, and freed at once
                resident.append(resident_bytes())
                del held

    monitor = MemoryMonitor()
    fit(monitor, Spike(), epochs=4)

    # What tests before have left may be freed in any epoch, so none is compared with
    # the one before; and the kernel adds its pages up in two ways, some apart.
    during, after = (record.host.peak_bytes for record in monitor.records[2:])
    assert monitor.records[0].host.peak_source == "kernel"
    assert during > resident[0] - MIB
    assert after < resident[0] - spike / 2


@pytest.mark.one_backend
@pytest.mark.parametrize("validate", [False, True])
def test_callbacks_listed_after_see_the_keys_and_none_is_of_validation(
    fit, devices, data, tmp_path, validate
):
    devices(FakeDevices())
    stop = keras.callbacks.EarlyStopping("device_peak_mib", mode="min", patience=0)
    log = keras.callbacks.CSVLogger(tmp_path / "log.csv")
    options = {"validation_data": data} if validate else {}

    history = fit(MemoryMonitor(), stop, log, epochs=5, **options)

    keys = {"loss", "device_peak_mib", "device_mib", "host_peak_mib"}
    keys |= {"device_peak_sum_mib", "device_sum_mib"}  # there are two devices
    assert set(history) == keys | ({"val_loss"} if validate else set())
    assert len(history["loss"]) == 2  # the peak did not fall, so it stopped
    with (tmp_path / "log.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert [row["device_peak_mib"] for row in rows] == ["5.0", "5.0"]
    if validate:
        assert set(rows[0]) == set(history) | {"epoch"}


@pytest.mark.one_backend
def test_a_device_that_fails_is_one_warning_and_training_goes_on(fit, devices):
    class Broken(FakeDevices):
        readings = 0

        def device_memory(self):
            self.readings += 1
            if self.readings > 2:
                raise RuntimeError("device lost")
            return super().device_memory()

    devices(Broken())

    with pytest.warns(KerasMemWarning) as caught:
        history = fit(MemoryMonitor(), epochs=4)

    messages = [str(w.message) for w in caught if w.category is KerasMemWarning]
    assert messages == [
        "MemoryMonitor could not read the memory: RuntimeError: device lost. "
        "Training continues."
    ]
    assert len(history["loss"]) == 4


@pytest.mark.one_backend
def test_a_full_disk_is_one_warning_and_the_keys_stay(fit, devices, tmp_path):
    devices(FakeDevices())
    (tmp_path / "log").write_text("a file where the folder shall be")

    with pytest.warns(KerasMemWarning, match=r"could not write run\.json: FileExists"):
        history = fit(MemoryMonitor(log_dir=tmp_path / "log"), epochs=2)

    assert history["device_peak_mib"] == [5.0, 5.0]


@pytest.mark.one_backend
def test_every_record_is_a_line_at_once_and_reads_back(fit, devices, tmp_path):
    devices(FakeDevices())
    monitor = MemoryMonitor(every=4, log_dir=tmp_path / "run")
    path = tmp_path / "run" / "memory.jsonl"
    seen = []

    class Look(keras.callbacks.Callback):
        def on_epoch_end(self, epoch, logs=None):
            seen.append(len(path.read_text().splitlines()))

    fit(monitor, Look(), epochs=2)

    assert seen == [3, 6]
    lines = path.read_text().splitlines()
    assert [MemoryRecord.from_json(line) for line in lines] == monitor.records


@pytest.mark.one_backend
def test_a_broken_fit_leaves_no_sampling_thread(fit, devices, monkeypatch):
    devices(FakeDevices())
    peaks = []

    def sampled(is_needed):
        peaks.append(SampledPeak(is_needed))
        return peaks[-1]

    class BreakOff(keras.callbacks.Callback):
        def on_epoch_end(self, epoch, logs=None):
            raise KeyboardInterrupt

    monkeypatch.setattr(memory_monitor, "host_peak", sampled)
    monitor = MemoryMonitor()
    with pytest.raises(KeyboardInterrupt):
        fit(monitor, BreakOff())

    peaks[0]._thread.join(timeout=10)
    assert not peaks[0]._thread.is_alive()
    assert monitor.records[0].host.peak_source == "sampled"


@pytest.mark.one_backend
def test_a_record_without_a_host_reads_back():
    record = MemoryRecord(epoch=0, batch=None, devices=(), host=None)
    assert MemoryRecord.from_json(record.to_json()) == record

    read = dataclasses.replace(record, host=HostReading(1, 2, "kernel"))
    assert MemoryRecord.from_json(read.to_json()) == read


@pytest.mark.one_backend
@pytest.mark.parametrize("every", ["step", 0, -1, 1.5, True])
def test_an_interval_that_is_none_is_refused(every):
    with pytest.raises(ConfigError, match=rf"'epoch', 'batch' .* every={every!r}"):
        MemoryMonitor(every=every)
