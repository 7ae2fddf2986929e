"""Peaks of stretches within each other, out of one peak that is reset."""

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kerasmem.memory.peaks import Peaks
from kerasmem.records import DeviceReading, HostReading

pytestmark = pytest.mark.one_backend


class Counter:
    """An allocator and a process whose memory in use is told what to be."""

    def __init__(self, can_reset=True):
        self.can_reset = can_reset
        self.reading = DeviceReading("GPU:0", 0, 0, peak_was_reset=can_reset)
        self.host = HostReading(0, 0, "kernel")
        self.closed = False
        self.readers = []

    def use(self, size):
        peak, host_peak = self.reading.peak_bytes, self.host.peak_bytes
        self.reading = replace(
            self.reading, current_bytes=size, peak_bytes=max(peak, size)
        )
        self.host = HostReading(size + 1, max(host_peak, size + 1), "kernel")

    def devices(self):
        return (self.reading,)

    def reset_devices(self):
        for reader in self.readers:
            reader.take_over()
        if self.can_reset:
            current = self.reading.current_bytes
            self.reading = replace(self.reading, peak_bytes=current)
        return self.can_reset

    def reset(self):
        self.host = replace(self.host, peak_bytes=self.host.rss_bytes)

    def read(self):
        return self.host

    def close(self):
        self.closed = True


def peaks_of(counter):
    return Peaks(counter.devices, counter.reset_devices, counter)


steps = st.lists(
    st.one_of(
        st.integers(0, 100),
        st.tuples(st.sampled_from(["begin", "end", "read"]), st.sampled_from("abc")),
    ),
    max_size=30,
)


@settings(max_examples=150, derandomize=True, deadline=None)
@given(steps)
def test_every_stretch_has_the_peak_since_it_began(steps):
    counter = Counter()
    peaks = peaks_of(counter)
    peaks.begin("a")
    expected, current = {"a": 0}, 0
    for step in [*steps, *(("read", stretch) for stretch in "abc")]:
        if isinstance(step, int):
            counter.use(current := step)
            expected = {name: max(peak, step) for name, peak in expected.items()}
            continue
        action, stretch = step
        if action == "begin":
            peaks.begin(stretch)
            expected[stretch] = current
        elif action == "end":
            peaks.end(stretch)
            expected.pop(stretch, None)
        elif stretch in expected:
            (device,), host = peaks.read(stretch)
            assert device.current_bytes == current
            assert device.peak_bytes == expected[stretch]
            assert host.peak_bytes >= expected[stretch]
            assert host.rss_bytes == counter.host.rss_bytes


@settings(max_examples=150, derandomize=True, deadline=None)
@given(st.lists(st.one_of(st.integers(0, 100), st.sampled_from("abx")), max_size=30))
def test_every_reader_has_the_peak_since_it_began_whoever_resets(steps):
    counter = Counter()
    readers = {
        name: Peaks(counter.devices, counter.reset_devices, None) for name in "ab"
    }
    counter.readers = list(readers.values())
    expected, current = {}, 0
    for step in [*"ab", *steps]:
        if step == "x":  # the user's own code
            counter.reset_devices()
        elif step in readers:
            readers[step].begin("epoch")
            expected[step] = current
        else:
            counter.use(current := step)
            expected = {name: max(peak, step) for name, peak in expected.items()}
    for name, reader in readers.items():
        (device,), _ = reader.read("epoch")
        assert device.peak_bytes == expected[name]


def test_the_host_has_its_own_peak():
    counter = Counter()
    peaks = peaks_of(counter)
    peaks.begin("epoch")
    counter.use(40)
    counter.use(10)
    peaks.begin("validation")
    counter.use(30)

    assert peaks.read("validation")[1] == HostReading(31, 31, "kernel")
    assert peaks.read("epoch")[1] == HostReading(31, 41, "kernel")


def test_where_no_peak_can_be_reset_a_reading_says_so():
    counter = Counter(can_reset=False)
    peaks = peaks_of(counter)
    counter.use(50)
    counter.use(5)
    peaks.begin("epoch")

    (device,), _ = peaks.read("epoch")

    assert (device.peak_bytes, device.peak_was_reset) == (50, False)


def test_without_a_host_there_is_none():
    counter = Counter()
    peaks = Peaks(counter.devices, counter.reset_devices, None)
    peaks.begin("epoch")
    assert peaks.read("epoch")[1] is None
    peaks.close()


def test_closing_closes_the_host():
    counter = Counter()
    peaks_of(counter).close()
    assert counter.closed
