"""The rules of torch's caching allocator, each on requests small enough to follow."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kerasmem.memory.allocator.torch_allocator import CachingAllocator
from kerasmem.units import MIB

pytestmark = pytest.mark.one_backend


def test_small_requests_share_a_segment_of_two_mib():
    allocator = CachingAllocator()
    first, second = allocator.allocate(100), allocator.allocate(MIB)
    assert second - first == 512
    assert allocator.in_use_bytes == 512 + MIB
    assert allocator.pool_bytes == 2 * MIB


@pytest.mark.parametrize(
    ("asked", "in_use", "pool"),
    [
        (3, 3, 20),
        (10, 10, 10),  # segments of their own from here on, in steps of 2 MiB
        (11, 12, 12),  # one MiB is left: not enough to split a large block
    ],
)
def test_medium_requests_share_segments_of_twenty_mib(asked, in_use, pool):
    allocator = CachingAllocator()
    allocator.allocate(asked * MIB)
    assert allocator.in_use_bytes == in_use * MIB
    assert allocator.pool_bytes == pool * MIB


def test_a_freed_block_is_used_again_and_merges_with_its_neighbors():
    allocator = CachingAllocator()
    low, high = allocator.allocate(4 * MIB), allocator.allocate(4 * MIB)
    allocator.free(low)
    allocator.free(high)
    assert allocator.allocate(19 * MIB) == low
    assert allocator.pool_bytes == 20 * MIB


@settings(max_examples=30, deadline=None, derandomize=True)
@given(st.lists(st.integers(1, 30 * MIB), min_size=1, max_size=40))
def test_what_is_all_given_back_leaves_nothing_in_use(sizes):
    allocator, blocks, segments = CachingAllocator(), [], []
    for size in sizes:
        held = allocator.pool_bytes
        blocks.append(allocator.allocate(size))
        segments.append(allocator.pool_bytes - held)
    assert len(set(blocks)) == len(blocks)
    assert sum(sizes) <= allocator.in_use_bytes <= allocator.pool_bytes
    for block in blocks[::2] + blocks[1::2]:
        allocator.free(block)
    held = allocator.pool_bytes
    assert allocator.in_use_bytes == 0
    # Every segment is whole again: the smallest serve requests up to 1 MiB alone.
    for segment in filter(None, segments):
        for size in [MIB, MIB] if segment == 2 * MIB else [segment]:
            allocator.allocate(size)
    assert allocator.in_use_bytes == allocator.pool_bytes == held
