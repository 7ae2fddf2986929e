"""Who holds what, at any moment and at the peak; and what a replay comes to."""

from hypothesis import given, settings
from hypothesis import strategies as st

from kerasmem.memory.allocator import (
    BFCAllocator,
    MemoryWatcher,
    PoolPolicy,
    replay,
    why_refused,
)
from kerasmem.units import KIB, MIB

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
        assert sum(b.given_bytes for b in timeline.alive(event)) == in_use


@given(requests())
@settings(max_examples=60, derandomize=True, deadline=None)
def test_holders_share_all_bytes_now_and_at_the_peak(sizes):
    watcher = watched(sizes)
    assert sum(watcher.holders().values()) == watcher.allocator.in_use_bytes
    assert sum(watcher.holders_at_peak().values()) == watcher.allocator.peak_bytes


@given(requests())
@settings(max_examples=60, derandomize=True, deadline=None)
def test_a_replay_under_the_same_policy_is_the_same_run(sizes):
    timeline = watched(sizes).timeline()
    again = replay(timeline, ROOM)
    assert again.timeline == timeline
    assert again.fits


def test_a_replay_under_a_smaller_limit_names_the_block_that_is_refused():
    watcher = MemoryWatcher(BFCAllocator(ROOM))
    watcher.allocate(8 * MIB, holder="dense", category="parameter")
    watcher.allocate(8 * MIB, holder="conv", category="activation")
    again = replay(watcher.timeline(), PoolPolicy(limit_bytes=12 * MIB, growth=False))
    assert not again.fits
    assert again.refused.layer == "conv"
    assert again.refusal == (
        "12.0 MiB of 12.0 MiB are in use, so 8.00 MiB more do not fit: 8.00 MiB are "
        "missing."
    )
    # Less than twice the request is not split off: all 12 MiB went to the first.
    assert again.peak_bytes == 12 * MIB
    assert again.pool_bytes == 12 * MIB


def test_fragmented_memory_is_told_from_full_memory():
    allocator = BFCAllocator(PoolPolicy(limit_bytes=MIB, growth=False))
    addresses = [allocator.allocate(64 * KIB) for _ in range(16)]
    for address in addresses[::2]:
        allocator.free(address)
    assert why_refused(allocator, 100 * KIB) == (
        "50% of 1.00 MiB are free but no block above 64.0 KiB, so 100 KiB in one "
        "piece are not to be had: use the allocator cuda_malloc_async."
    )


def test_a_request_above_the_limit_is_called_that():
    allocator = BFCAllocator(PoolPolicy(limit_bytes=MIB))
    assert why_refused(allocator, 2 * MIB) == (
        "2.00 MiB in one piece is more than the limit of 1.00 MiB: no smaller batch of "
        "the other tensors helps, this one has to shrink."
    )
