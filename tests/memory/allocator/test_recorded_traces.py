"""The simulator does what a real GPU's allocator did, by two traces of an H200."""

import gzip
import json
from pathlib import Path

import pytest

from tests.memory.allocator.recorded_pool import found_pool, pool_of

pytestmark = pytest.mark.one_backend

DATA = Path(__file__).parents[2] / "data"


@pytest.fixture(
    scope="module", params=[("cnn", 292), ("transformer", 2248)], ids=lambda p: p[0]
)
def trace(request):
    """Return the events of two steps on the GPU, and how many the first step has."""
    name, first_step = request.param
    return _gpu_events(name), first_step


def test_the_first_step_tells_every_address_and_size_of_the_second(trace):
    events, first_step = trace
    stretches, held = found_pool(events[:first_step])
    allocator = pool_of(stretches, held)
    not_seen = _in_use_before(events) - allocator.in_use_bytes  # weights, slots
    peak = 0
    for event in events:
        if event["alloc"]:
            address = allocator.allocate(event["requested_bytes"])
            given = allocator.chunk_at(address).size
            assert (address, given) == (event["addr"], event["allocation_bytes"])
        else:
            allocator.free(event["addr"])
        assert not_seen + allocator.in_use_bytes == event["bytes_allocated"]
        peak = max(peak, allocator.in_use_bytes)
    in_use = [event["bytes_allocated"] for event in events]
    assert not_seen + peak == max(in_use)
    assert len(stretches) < 30 < len(events) / 15, "few facts explain many addresses"


def _gpu_events(name):
    with gzip.open(DATA / f"trace_{name}.jsonl.gz", "rt") as lines:
        rows = [json.loads(line) for line in lines]
    return [row for row in rows if row["allocator_name"] == "GPU_0_bfc"]


def _in_use_before(events):
    first = events[0]
    change = first["allocation_bytes"] * (1 if first["alloc"] else -1)
    return first["bytes_allocated"] - change
