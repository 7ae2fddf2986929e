"""The peak of the process, from the kernel and from a sampling thread."""

import mmap
import threading
import weakref

import pytest

from kerasmem.processes import host
from kerasmem.units import MIB

pytestmark = pytest.mark.one_backend

SPIKE = 100 * MIB


@pytest.fixture(params=["kernel", "sampled"])
def peak(request):
    if request.param == "kernel":
        measured = host.KernelPeak()
    else:
        measured = host.SampledPeak(lambda: True)
    yield measured
    measured.close()


@pytest.fixture
def looked(peak, monkeypatch):
    """Return a function that returns once a peak that a thread sees has been seen."""
    look, begun = host.resident_bytes, threading.Event()

    def noted():
        if threading.current_thread() is not threading.main_thread():
            begun.set()
        return look()

    def wait():
        # The second look begins when one is over that began after the call.
        for _ in range(2 if isinstance(peak, host.SampledPeak) else 0):
            begun.clear()
            assert begun.wait(timeout=60)

    monkeypatch.setattr(host, "resident_bytes", noted)
    return wait


def test_the_peak_holds_a_spike_until_it_is_reset(peak, looked):
    peak.reset()
    before = peak.read().peak_bytes
    with mmap.mmap(-1, SPIKE) as block:
        block.write(bytes(SPIKE))
        looked()

    held = peak.read()
    peak.reset()
    forgotten = peak.read()

    assert held.peak_bytes - before > 0.9 * SPIKE
    assert held.peak_bytes - held.rss_bytes > 0.9 * SPIKE
    assert held.peak_bytes - forgotten.peak_bytes > 0.9 * SPIKE


def test_a_reader_keeps_the_peak_that_another_resets():
    first, second = host.KernelPeak(), host.KernelPeak()
    first.reset()
    with mmap.mmap(-1, SPIKE) as block:
        block.write(bytes(SPIKE))
        during = host.resident_bytes()
    second.reset()

    assert first.read().peak_bytes > during - MIB
    assert second.read().peak_bytes < during - SPIKE / 2


def test_a_reader_that_is_closed_or_gone_takes_nothing_over():
    gone, closed, resetting = (host.KernelPeak() for _ in range(3))
    closed.close()
    left = weakref.ref(gone)
    del gone

    resetting.reset()

    assert left() is None
    assert closed.read().peak_bytes == resetting.read().peak_bytes


def test_the_peak_is_never_below_what_is_resident(peak):
    peak.reset()
    with mmap.mmap(-1, SPIKE) as block:
        block.write(bytes(SPIKE))
        reading = peak.read()
    assert reading.peak_bytes >= reading.rss_bytes


def test_a_reading_says_where_the_peak_comes_from():
    sampled = host.SampledPeak(lambda: True)
    sampled.close()
    assert sampled.read().peak_source == "sampled"
    assert host.KernelPeak().read().peak_source == "kernel"


def test_a_sample_begun_before_the_reset_is_not_kept_after_it(monkeypatch):
    is_looking, is_over = threading.Event(), threading.Event()

    def resident_bytes():
        if threading.current_thread() is threading.main_thread() or is_over.is_set():
            return MIB
        is_looking.set()
        is_over.wait(timeout=0.2)
        return SPIKE

    monkeypatch.setattr(host, "resident_bytes", resident_bytes)
    peak = host.SampledPeak(lambda: True)
    is_looking.wait()

    peak.reset()
    is_over.set()
    peak.close()

    assert peak.read().peak_bytes == MIB


def test_closing_ends_the_sampling_thread():
    peak = host.SampledPeak(lambda: True)
    peak.close()
    peak.close()
    assert not peak._thread.is_alive()


def test_the_sampling_thread_ends_when_it_is_not_needed():
    peak = host.SampledPeak(lambda: False)
    peak._thread.join(timeout=10)
    assert not peak._thread.is_alive()


def test_a_kernel_that_refuses_the_reset_is_not_used(monkeypatch, tmp_path):
    monkeypatch.setattr(host, "CLEAR_REFS", tmp_path / "missing" / "clear_refs")
    monkeypatch.setattr(host, "kernel_peak_works", host.kernel_peak_works.__wrapped__)

    peak = host.host_peak(lambda: True)
    peak.close()

    assert isinstance(peak, host.SampledPeak)


def test_a_kernel_that_ignores_the_reset_is_not_used(monkeypatch, tmp_path):
    monkeypatch.setattr(host, "CLEAR_REFS", tmp_path / "clear_refs")

    assert host.kernel_peak_works.__wrapped__() is False


def test_a_system_without_a_high_water_mark_is_not_used(monkeypatch, tmp_path):
    (tmp_path / "status").write_text("Name: python\n")
    monkeypatch.setattr(host, "STATUS", tmp_path / "status")

    assert host.kernel_peak_works.__wrapped__() is False
