"""Who holds what, at any moment and at the peak; and what a replay comes to."""

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kerasmem.errors import ConfigError
from kerasmem.memory.allocator import (
    BFCAllocator,
    MemoryWatcher,
    PoolPolicy,
    load_timelines,
    replay,
    save_timeline,
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


@given(requests())
@settings(max_examples=60, derandomize=True, deadline=None)
def test_a_replay_under_the_same_policy_is_the_same_run(sizes):
    timeline = watched(sizes).timeline()
    again = replay(timeline, ROOM)
    assert again.timeline == replace(timeline, allocator="simulated, in 64.0 MiB")
    assert again.fits


@given(requests(), st.booleans(), st.booleans())
@settings(max_examples=60, derandomize=True, deadline=None)
def test_the_largest_piece_that_is_to_be_had_is_told(sizes, growth, collects):
    policy = PoolPolicy(
        limit_bytes=16 * MIB, growth=growth, garbage_collection=collects
    )
    for more in (1, 0):
        allocator = watched(sizes, policy).allocator
        most = allocator.obtainable_bytes
        if most:
            assert (allocator.allocate(most + more) is None) == bool(more)


def test_a_replay_under_a_smaller_limit_names_the_block_that_is_refused():
    watcher = MemoryWatcher(BFCAllocator(ROOM))
    watcher.allocate(8 * MIB, holder="dense", category="parameter")
    watcher.allocate(8 * MIB, holder="conv", category="activation")
    again = replay(watcher.timeline(), PoolPolicy(limit_bytes=12 * MIB, growth=False))
    assert not again.fits
    assert again.refused.layer == "conv"
    assert again.refusal == (
        "12.0 MiB of 12.0 MiB is in use (4.00 MiB of it wasted), so 8.00 MiB more does "
        "not fit: 8.00 MiB is missing. The blocks need 16.0 MiB at once, so they fit "
        "with no allocator. Next: use a smaller batch."
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


def test_a_device_with_less_than_the_limit_is_the_limit():
    policy = PoolPolicy(limit_bytes=64 * MIB, device_bytes=8 * MIB)
    watcher = MemoryWatcher(BFCAllocator(policy))
    assert watcher.allocate(10 * MIB) is None
    assert "exceeds the limit of 8.00 MiB" in watcher.refusal


def timeline_of(*sizes):
    """Return the timeline of blocks that are taken; a negative one is given back."""
    watcher, alive = MemoryWatcher(BFCAllocator(ROOM)), {}
    for size in sizes:
        if size > 0:
            alive.setdefault(size, []).append(watcher.allocate(size * MIB))
        else:
            watcher.free(alive[-size].pop(0))
    return watcher.timeline()


def test_what_a_replay_advises_was_tried():
    # 3 and 3 of 4 and 8 leave 1 and 5 (growth), 6 in one piece (preallocated).
    recorded = timeline_of(3, 3, 6)
    again = replay(recorded, "12MiB")
    assert again.refusal.endswith("With preallocation (growth=False), all blocks fit.")
    assert replay(recorded, PoolPolicy(limit_bytes=12 * MIB, growth=False)).fits


def test_what_only_gaps_refuse_may_fit_into_another_allocator():
    recorded = timeline_of(3, 1, 2, 6, -3, -2, 5)
    again = replay(recorded, PoolPolicy(limit_bytes=12 * MIB, growth=False))
    assert again.refusal == (
        "42% of 12.0 MiB is free, but the largest block is 3.00 MiB, so a block of "
        "5.00 MiB cannot be allocated. The blocks need at most 12.0 MiB at once. Next: "
        "try cuda_malloc_async, an allocator with less fragmentation."
    )


def test_a_timeline_with_blocks_put_together_is_not_replayed():
    with pytest.raises(ConfigError, match=r"folded=0\. Received: folded=3\. Next: rec"):
        replay(replace(timeline_of(1), folded=3), ROOM)


def test_a_limit_that_is_no_number_of_bytes_is_refused():
    with pytest.raises(ConfigError, match="Received: limit_bytes='8GiB'"):
        PoolPolicy(limit_bytes="8GiB")


def test_a_replay_is_drawn_by_the_report_of_its_folder(tmp_path):
    again = replay(timeline_of(3, 3, -3, 6), "64MiB")
    save_timeline(again.timeline, tmp_path / "replay")
    assert load_timelines(tmp_path / "replay") == (again.timeline,)


def test_a_request_above_the_limit_is_called_that():
    allocator = BFCAllocator(PoolPolicy(limit_bytes=MIB))
    assert why_refused(allocator, 2 * MIB) == (
        "The request of 2.00 MiB exceeds the limit of 1.00 MiB. Next: make this tensor "
        "smaller; freeing other tensors does not help."
    )
