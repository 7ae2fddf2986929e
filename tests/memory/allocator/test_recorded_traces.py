"""The simulator does what a real GPU's allocator did, by two traces of an H200."""

import gzip
import json
from dataclasses import replace
from pathlib import Path

import pytest

from kerasmem.memory.allocator import replay
from kerasmem.records import Block, Timeline
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
    allocator.clear_peak()
    for event in events:
        if event["alloc"]:
            address = allocator.allocate(event["requested_bytes"])
            given = allocator.chunk_at(address).size
            assert (address, given) == (event["addr"], event["allocation_bytes"])
        else:
            allocator.free(event["addr"])
        assert not_seen + allocator.in_use_bytes == event["bytes_allocated"]
    in_use = [event["bytes_allocated"] for event in events]
    assert not_seen + allocator.peak_bytes == max(in_use)
    assert len(stretches) < 30 < len(events) / 15, "few facts explain many addresses"


def _gpu_events(name):
    with gzip.open(DATA / f"trace_{name}.jsonl.gz", "rt") as lines:
        rows = [json.loads(line) for line in lines]
    return [row for row in rows if row["allocator_name"] == "GPU_0_bfc"]


def _in_use_before(events):
    first = events[0]
    change = first["allocation_bytes"] * (1 if first["alloc"] else -1)
    return first["bytes_allocated"] - change


def _timeline(events):
    """Return the window as a timeline; what was there before is one block."""
    before = _in_use_before(events)
    held = Block(before, before, 0, None, None, "", None, "unknown", "parameter")
    blocks, places = [held], {}
    for number, event in enumerate(events):
        address, place = event["addr"], places.pop(event["addr"], None)
        if event["alloc"]:
            places[address] = len(blocks)
            sizes = (event["requested_bytes"], event["allocation_bytes"], address)
            what = (event["tf_op"], None, "unknown", "temporary")
            blocks.append(Block(*sizes, number, None, *what))
        elif place is not None:
            blocks[place] = replace(blocks[place], freed_at=number)
    in_use = tuple(event["bytes_allocated"] for event in events)
    times = tuple(range(len(events)))
    head = ("GPU_0_bfc", "profiler", 2, 2, before)
    return Timeline(*head, times, in_use, (), (), tuple(blocks))


def test_a_real_window_is_refused_under_less_with_the_reason_and_a_remedy():
    again = replay(_timeline(_gpu_events("cnn")), "320MiB")
    assert again.refused.operation.endswith("max_pooling2d_1/MaxPool2d/MaxPoolGrad")
    assert again.refusal == (
        "46% of 320 MiB is free, but the largest block is 54.9 MiB, so a block of "
        "64.0 MiB cannot be allocated. The blocks need at most 304 MiB at once. Next: "
        "try cuda_malloc_async, an allocator with less fragmentation."
    )


@pytest.mark.parametrize(
    ("name", "enough", "too_little"),
    [("cnn", "400MiB", "300MiB"), ("transformer", "2GiB", "1.9GiB")],
)
def test_a_real_window_fits_near_its_peak_and_not_below_what_its_blocks_take(
    name, enough, too_little
):
    timeline = _timeline(_gpu_events(name))
    roomy = replay(timeline, "1TiB")
    assert roomy.peak_bytes == pytest.approx(timeline.peak_bytes, rel=0.035)
    assert replay(timeline, enough).fits
    assert "use a smaller batch" in replay(timeline, too_little).refusal
