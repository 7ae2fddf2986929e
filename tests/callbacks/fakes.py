"""Backends whose devices have figures that a test decides."""

from dataclasses import replace

from kerasmem.records import DeviceReading
from kerasmem.units import MIB


class FakeDevices:
    """A backend with two devices whose figures are known."""

    name = "fake"

    def __init__(self, can_reset=True):
        self.can_reset = can_reset
        self.resets = 0
        self.observers = []

    def device_memory(self):
        return (
            DeviceReading("GPU:0", 3 * MIB, 5 * MIB, peak_was_reset=True),
            DeviceReading("GPU:1", 4 * MIB, 4 * MIB, peak_was_reset=True),
        )

    def reset_device_peak(self):
        self.resets += 1
        for observer in list(self.observers):
            observer()
        return self.can_reset

    def observe_peak_resets(self, observer):
        self.observers.append(observer)
        return lambda: self.observers.remove(observer)

    def input_bytes(self):
        return None

    def cuda_ordinals(self):
        return {}

    def processes(self, model):
        return 0, 1

    def traces(self, model):
        return 1


class NoDevices(FakeDevices):
    """A backend that counts nothing."""

    def device_memory(self):
        return ()

    def why_no_device_memory(self):
        return "Nothing counts here."


class Allocator(FakeDevices):
    """A backend with one device that has in use what it is told to."""

    def __init__(self, can_reset=True):
        super().__init__(can_reset)
        self.reading = DeviceReading("GPU:0", 0, 0, peak_was_reset=True)

    def use(self, size):
        peak = max(self.reading.peak_bytes, size)
        self.reading = replace(self.reading, current_bytes=size, peak_bytes=peak)

    def spike(self, size):
        before = self.reading.current_bytes
        self.use(size)
        self.use(before)

    def device_memory(self):
        return (self.reading,)

    def reset_device_peak(self):
        super().reset_device_peak()
        if self.can_reset:
            current = self.reading.current_bytes
            self.reading = replace(self.reading, peak_bytes=current)
        return self.can_reset
