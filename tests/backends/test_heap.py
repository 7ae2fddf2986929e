"""The heap of the C library."""

import pytest

from kerasmem.backends import heap
from kerasmem.processes.host import resident_bytes

pytestmark = pytest.mark.one_backend


def test_the_heap_of_the_c_library_tells_what_is_used_and_what_is_free():
    before = heap.c_heap()
    blocks = [bytearray(50_000) for _ in range(1000)]
    used = heap.c_heap()
    last = blocks.pop()  # lies above the others, which stay in the heap
    blocks.clear()
    freed = heap.c_heap()
    assert used.used_bytes - before.used_bytes == pytest.approx(50e6, rel=0.02)
    assert used.used_bytes - freed.used_bytes == pytest.approx(50e6, rel=0.02)
    assert freed.free_bytes - used.free_bytes == pytest.approx(50e6, rel=0.02)
    assert last


def test_free_pages_go_back_to_the_kernel():
    heap.trim_heap()  # what other tests left free is not counted
    blocks = [bytearray(b"1") * 50_000 for _ in range(1000)]
    used = resident_bytes()
    last = blocks.pop()  # lies above the others, which stay in the heap
    blocks.clear()
    freed = resident_bytes()
    heap.trim_heap()
    assert used - freed < 5e6
    assert freed - resident_bytes() == pytest.approx(50e6, rel=0.1)
    assert last
