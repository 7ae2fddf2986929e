"""One peak that several read: monitors of one fit, and the user's own code."""

import gc

import keras
import pytest

from kerasmem import backends
from kerasmem.callbacks import MemoryMonitor
from kerasmem.errors import KerasMemWarning
from kerasmem.units import MIB
from tests.callbacks.fakes import Allocator


class Steps(keras.callbacks.Callback):
    """Has a step need 30 MiB, the first one of an epoch 50, a validation 20."""

    def __init__(self, allocator):
        super().__init__()
        self._allocator = allocator
        allocator.use(10 * MIB)

    def on_train_batch_begin(self, batch, logs=None):
        self._allocator.spike((30 if batch else 50) * MIB)

    def on_test_batch_begin(self, batch, logs=None):
        self._allocator.spike(20 * MIB)


class Reset(keras.callbacks.Callback):
    """The user's own: restarts the peak behind every step."""

    def __init__(self, allocator):
        super().__init__()
        self._allocator = allocator

    def on_train_batch_end(self, batch, logs=None):
        self._allocator.reset_device_peak()


class BreakOff(keras.callbacks.Callback):
    def on_epoch_end(self, epoch, logs=None):
        raise KeyboardInterrupt


@pytest.fixture
def allocator(devices):
    return devices(Allocator())


def figures(monitor):
    return [
        (
            record.phase,
            record.devices[0].peak_bytes // MIB,
            (record.devices[0].first_step_peak_bytes or 0) // MIB,
            (record.devices[0].later_peak_bytes or 0) // MIB,
        )
        for record in monitor.records
    ]


ALONE = [
    ("validation", 20, 0, 0),
    ("train", 50, 50, 30),
    ("validation", 20, 0, 0),
    ("train", 50, 0, 0),
]


@pytest.mark.one_backend
@pytest.mark.parametrize("beside", ["nothing", "monitors", "resets", "both"])
def test_a_monitor_reads_the_same_whoever_else_resets(fit, data, allocator, beside):
    first, *others = (MemoryMonitor(host=False) for _ in range(3))
    resets = [Reset(allocator)] if beside in ("resets", "both") else []
    monitors = [first, *(others if beside in ("monitors", "both") else [])]
    callbacks = [*resets, *monitors, *resets]

    fit(Steps(allocator), *callbacks, epochs=2, validation_data=data)

    assert [figures(monitor) for monitor in monitors] == [ALONE] * len(monitors)
    assert allocator.observers == []


@pytest.mark.one_backend
def test_what_a_broken_fit_leaves_goes_with_the_first_reset(fit, allocator):
    monitor = MemoryMonitor(host=False)
    with pytest.raises(KeyboardInterrupt):
        fit(Steps(allocator), monitor, BreakOff())

    allocator.reset_device_peak()

    assert allocator.observers == []
    assert len(monitor.records) == 1


def test_a_monitor_that_is_gone_leaves_nothing(fit, allocator):
    with pytest.raises(KeyboardInterrupt):
        fit(Steps(allocator), MemoryMonitor(host=False), BreakOff())
    gc.collect()
    assert allocator.observers == []


@pytest.mark.one_backend
def test_in_a_loop_of_ones_own_two_monitors_read_the_same(make_model, allocator):
    monitors = [MemoryMonitor(host=False) for _ in range(2)]
    model = make_model()
    model.compile("sgd", "mse")
    callbacks = keras.callbacks.CallbackList([Steps(allocator), *monitors], model=model)
    callbacks.on_train_begin()
    callbacks.on_epoch_begin(0)
    for batch in range(3):
        callbacks.on_train_batch_begin(batch)
        callbacks.on_train_batch_end(batch)
    callbacks.on_epoch_end(0, {})
    callbacks.on_train_end()
    assert [figures(monitor) for monitor in monitors] == [ALONE[1:2]] * 2


@pytest.mark.one_backend
def test_a_peak_that_cannot_be_taken_over_is_no_matter_of_who_resets(fit, devices):
    class Lost(Allocator):
        is_lost = False

        def device_memory(self):
            if self.is_lost:
                raise RuntimeError("device lost")
            return super().device_memory()

    allocator = devices(Lost())

    class ResetWhileLost(Reset):
        def on_train_batch_end(self, batch, logs=None):
            allocator.is_lost = batch == 3
            super().on_train_batch_end(batch)
            allocator.is_lost = False

    monitor = MemoryMonitor(host=False)
    with pytest.warns(KerasMemWarning, match="could not read the memory: .*lost"):
        fit(Steps(allocator), ResetWhileLost(allocator), monitor)
    assert monitor.records == []


def reset_of(backend):
    """Return where the framework's own reset is, by every name that it has."""
    if backend == "tensorflow":
        import tensorflow as tf

        return [(tf.config.experimental, "reset_memory_stats")]
    if backend == "torch":
        import torch

        modules = (torch.cuda, torch.cuda.memory, torch.accelerator)
        return [(module, "reset_peak_memory_stats") for module in modules]
    return []


def test_the_frameworks_own_reset_is_seen_and_left_as_it_was(backend, monkeypatch):
    calls = []
    resets = reset_of(backend)
    for module, name in resets:
        monkeypatch.setattr(module, name, calls.append)
    before = [getattr(module, name) for module, name in resets]
    undo = backends.current().observe_peak_resets(lambda: calls.append("told"))
    for module, name in resets:
        getattr(module, name)("device")
    undo()
    undo()

    assert calls == ["told", "device"] * len(resets)
    assert [getattr(module, name) for module, name in resets] == before
