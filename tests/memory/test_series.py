"""The largest and the sum over devices and processes."""

import math

import pytest

from kerasmem.memory.workers import series
from kerasmem.records import DeviceReading, HostReading, MemoryRecord
from kerasmem.units import MIB

pytestmark = pytest.mark.one_backend


def record(*devices, host=None, process=0):
    return MemoryRecord(
        epoch=0,
        batch=None,
        devices=tuple(
            DeviceReading(f"GPU:{n}", now * MIB, peak * MIB, peak_was_reset=True)
            for n, (now, peak) in enumerate(devices)
        ),
        host=None if host is None else HostReading(1, host * MIB, "kernel"),
        process=process,
    )


def test_one_device_of_one_process_has_no_sum():
    assert series({0: record((3, 5), host=70)}) == {
        "device_peak_mib": 5,
        "device_mib": 3,
        "host_peak_mib": 70,
    }


def test_several_devices_have_the_fullest_and_the_sum_and_one_host():
    assert series({0: record((3, 5), (4, 4), host=70)}) == {
        "device_peak_mib": 5,
        "device_peak_sum_mib": 9,
        "device_mib": 4,
        "device_sum_mib": 7,
        "host_peak_mib": 70,
    }


def test_several_processes_have_the_fullest_and_the_sum_of_all():
    records = {
        0: record((3, 5), host=70),
        1: record((4, 6), (1, 2), host=80, process=1),
    }
    assert series(records) == {
        "device_peak_mib": 6,
        "device_peak_sum_mib": 13,
        "device_mib": 4,
        "device_sum_mib": 8,
        "host_peak_mib": 80,
        "host_peak_sum_mib": 150,
    }


def test_an_allocator_that_devices_share_counts_once_in_a_sum():
    shared = DeviceReading("CPU:1", 3 * MIB, 5 * MIB, True, shares_with="CPU:0")
    one = record((3, 5))
    both = MemoryRecord(0, None, (*one.devices, shared), None)

    assert series({0: both}) == {
        "device_peak_mib": 5,
        "device_peak_sum_mib": 5,
        "device_mib": 3,
        "device_sum_mib": 3,
    }


def test_where_only_large_requests_are_counted_zero_is_no_figure():
    small, large = (
        DeviceReading("CPU:0", 0, peak * MIB, True, complete=False) for peak in (0, 2)
    )
    assert series({0: MemoryRecord(0, None, (small,), None)}) == {}
    assert series({0: MemoryRecord(0, None, (large,), None)}) == {
        "device_peak_mib": 2,
        "device_mib": 0,
    }
    assert series({0: record((0, 0))}) == {"device_peak_mib": 0, "device_mib": 0}


def test_sums_are_unknown_until_every_process_has_told_something():
    found = series({0: record((3, 5), host=70), 1: None})

    assert {key: value for key, value in found.items() if "_sum_" not in key} == {
        "device_peak_mib": 5,
        "device_mib": 3,
        "host_peak_mib": 70,
    }
    sums = [value for key, value in found.items() if "_sum_" in key]
    assert len(sums) == 3
    assert all(math.isnan(value) for value in sums)


@pytest.mark.parametrize("records", [{}, {0: record()}, {0: None}])
def test_where_nothing_is_known_there_is_no_series(records):
    assert series(records) == {}
