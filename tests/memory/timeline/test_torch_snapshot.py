import pytest

from kerasmem.backends.profile import MemoryEvent, with_requests

pytestmark = pytest.mark.one_backend


def entry(action, address, size):
    return {"action": action, "addr": address, "size": size, "stream": 0, "frames": []}


def event(address, given, in_use, *, is_allocation=True):
    return MemoryEvent(0, is_allocation, address, given, given, in_use)


def test_the_snapshot_adds_the_bytes_that_were_asked_for():
    snapshot = {
        "segments": [],
        "device_traces": [
            [entry("alloc", 512, 1)],
            [
                entry("segment_alloc", 0, 2_097_152),
                entry("alloc", 0, 400),
                entry("alloc", 512, 1_000),
                entry("free_requested", 0, 400),
                entry("free_completed", 0, 400),
                entry("alloc", 0, 12),
            ],
        ],
    }
    events = [
        event(0, 512, 512),
        event(512, 1_024, 1_536),
        event(0, 512, 1_024, is_allocation=False),
        event(0, 512, 1_536),
        event(4_096, 512, 1_024, is_allocation=False),  # of before the window
    ]
    found = with_requests(events, snapshot, device=1)
    assert [e.requested_bytes for e in found] == [400, 1_000, 400, 12, 512]
    assert [e.given_bytes for e in found] == [512, 1_024, 512, 512, 512]
