from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kerasmem.backends.profile import MemoryEvent
from kerasmem.memory.timeline.blocks import consistent

pytestmark = pytest.mark.one_backend


def events_of(sizes):
    """Return allocations of `sizes` bytes, one behind the other."""
    events, in_use = [], 1000
    for number, size in enumerate(sizes):
        in_use += size
        events.append(MemoryEvent(number, True, number, size, size, in_use))
    return events


SIZES = st.lists(st.integers(1, 10**6), min_size=1, max_size=30)


@settings(derandomize=True, max_examples=30, deadline=None)
@given(SIZES, st.randoms(use_true_random=False))
def test_events_of_one_moment_are_put_in_the_allocators_order(sizes, random):
    events = events_of(sizes)
    noted = [replace(event, time_ns=0) for event in events]
    random.shuffle(noted)
    # The first that was noted is taken for the first, so let it be that.
    noted.sort(key=lambda event: event.in_use_bytes != events[0].in_use_bytes)
    found = [event.in_use_bytes for event in consistent(noted)]
    assert found == [event.in_use_bytes for event in events]


def test_a_run_ends_where_the_profiler_lost_an_event():
    events = events_of([5, 6, 7, 8, 9, 10])
    assert consistent(events[:2] + events[3:]) == events[3:]
