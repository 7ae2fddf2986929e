"""Who holds what, at any moment and at the peak."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kerasmem.errors import ConfigError
from kerasmem.memory.allocator import (
    BFCAllocator,
    MemoryWatcher,
    PoolPolicy,
    why_refused,
)
from kerasmem.units import KIB, MIB

pytestmark = pytest.mark.one_backend

ROOM = PoolPolicy(limit_bytes=64 * MIB)


def requests():
    sizes = st.integers(1, 3 * MIB)
    return st.lists(st.one_of(sizes, st.just(0)), min_size=1, max_size=60)


def watched(sizes, policy=ROOM):
    """Allocate every size; a 0 frees the oldest block."""
    watcher, alive = MemoryWatcher(BFCAllocator(policy)), []
    for number, size in enumerate(sizes):
        if size:
            address = watcher.allocate(size, holder=f"layer_{number % 3}")
            alive += [address] if address is not None else []
        elif alive:
            watcher.free(alive.pop(0))
    return watcher


@given(requests())
@settings(max_examples=60, derandomize=True, deadline=None)
def test_the_blocks_alive_make_up_the_bytes_in_use_after_every_event(sizes):
    timeline = watched(sizes).timeline()
    for event, in_use in enumerate(timeline.in_use_bytes):
        assert sum(b.given_bytes for b in timeline.live(event)) == in_use


@given(requests())
@settings(max_examples=60, derandomize=True, deadline=None)
def test_holders_share_all_bytes_now_and_at_the_peak(sizes):
    watcher = watched(sizes)
    assert sum(watcher.holders().values()) == watcher.allocator.in_use_bytes
    assert sum(watcher.holders_at_peak().values()) == watcher.allocator.peak_bytes


@given(requests(), st.booleans())
@settings(max_examples=60, derandomize=True, deadline=None)
def test_the_largest_piece_that_is_to_be_had_is_told(sizes, growth):
    policy = PoolPolicy(limit_bytes=16 * MIB, growth=growth)
    for more in (1, 0):
        allocator = watched(sizes, policy).allocator
        most = allocator.obtainable_bytes
        if most:
            assert (allocator.allocate(most + more) is None) == bool(more)


def test_fragmented_memory_is_told_from_full_memory():
    allocator = BFCAllocator(PoolPolicy(limit_bytes=MIB, growth=False))
    addresses = [allocator.allocate(64 * KIB) for _ in range(16)]
    for address in addresses[::2]:
        allocator.free(address)
    assert why_refused(allocator, 100 * KIB) == (
        "50% of 1.00 MiB is free, but the largest block is 64.0 KiB, so a block of "
        "100 KiB cannot be allocated. Next: use the allocator cuda_malloc_async."
    )


def test_a_pool_that_may_still_grow_is_advised_not_to():
    allocator = BFCAllocator(PoolPolicy(limit_bytes=12 * MIB))
    kept = [allocator.allocate(2 * MIB) for _ in range(4)]
    for address in kept[1::2]:
        allocator.free(address)
    assert why_refused(allocator, 7 * MIB) == (
        "67% of 12.0 MiB is free, but the largest block is 6.00 MiB, so a block of "
        "7.00 MiB cannot be allocated. Next: preallocate the pool (growth=False), or "
        "use the allocator cuda_malloc_async."
    )


def test_a_limit_that_is_no_number_of_bytes_is_refused():
    with pytest.raises(ConfigError, match="Received: limit_bytes='8GiB'"):
        PoolPolicy(limit_bytes="8GiB")


def test_a_request_above_the_limit_is_called_that():
    allocator = BFCAllocator(PoolPolicy(limit_bytes=MIB))
    assert why_refused(allocator, 2 * MIB) == (
        "The request of 2.00 MiB exceeds the limit of 1.00 MiB. Next: make this tensor "
        "smaller; freeing other tensors does not help."
    )


def test_a_watcher_keeps_the_reason_of_a_failure():
    watcher = MemoryWatcher(
        BFCAllocator(PoolPolicy(limit_bytes=12 * MIB, growth=False))
    )
    watcher.allocate(8 * MIB, holder="dense", category="parameter")
    assert watcher.allocate(8 * MIB, holder="conv", category="activation") is None
    # Less than twice the request is not split off: all 12 MiB went to the first.
    assert watcher.refusal == (
        "12.0 MiB of 12.0 MiB is in use (4.00 MiB of it wasted), so 8.00 MiB more does "
        "not fit: 8.00 MiB is missing."
    )
