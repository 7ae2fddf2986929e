import gzip
import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kerasmem.errors import OutputError
from kerasmem.files.run_dir import (
    add_timelines,
    folded,
    timeline_text,
    timelines_in,
    write_timelines,
)
from tests.timelines import assert_adds_up, live_bytes, synthetic

pytestmark = pytest.mark.one_backend


def lifetimes(number, chance):
    """Return `number` pairs of event numbers in which blocks begin and end."""
    alive, pairs, event = [], [], 0
    while len(pairs) < number or alive:
        if len(pairs) < number and (not alive or chance.random() < 0.5):
            alive.append(len(pairs))
            pairs.append([event, None])
        else:
            block = alive.pop(int(chance.random() * len(alive)))
            pairs[block][1] = event
        event += 1
    return [tuple(pair) for pair in pairs]


@pytest.fixture
def timeline():
    chance = random.Random(1)
    pairs = lifetimes(500, chance)
    sizes = [chance.randrange(1, 100) ** 2 for _ in pairs]
    return synthetic(pairs, sizes, opening_bytes=777)


def test_a_timeline_comes_back_as_it_was_written(tmp_path, timeline):
    write_timelines(tmp_path / "a.json.gz", [timeline, timeline])
    assert timelines_in(timeline_text(tmp_path / "a.json.gz")) == [timeline, timeline]


def test_windows_are_numbered_from_0_and_none_is_overwritten(tmp_path, timeline):
    folder = tmp_path / "run"
    names = [add_timelines(folder, [timeline]).name for _ in range(2)]
    names.append(add_timelines(folder, [timeline], process=1).name)
    assert names == [
        "timeline-0000.json.gz",
        "timeline-0001.json.gz",
        "timeline-0000-p1.json.gz",
    ]


def test_what_cannot_fit_is_an_error_and_leaves_no_file(tmp_path, timeline):
    with pytest.raises(OutputError, match="do not fit.*limit_bytes=100"):
        write_timelines(tmp_path / "a.json.gz", [timeline], limit_bytes=100)
    assert list(tmp_path.iterdir()) == []


@settings(derandomize=True, max_examples=40, deadline=None)
@given(
    st.integers(2, 120),
    st.integers(2, 100),
    st.randoms(use_true_random=False),
    st.integers(0, 1000),
)
def test_folding_keeps_the_sums_and_the_peak(number, most, chance, opening):
    pairs = lifetimes(number, chance)
    sizes = [int(chance.random() * 1000) + 1 for _ in pairs]
    whole = synthetic(pairs, sizes, opening_bytes=opening)
    fewer = folded(whole, most)
    assert_adds_up(fewer)
    assert fewer.peak_bytes == whole.peak_bytes
    assert fewer.opening_bytes == whole.opening_bytes
    if len(whole.blocks) <= most:
        assert fewer is whole
    # A block that stayed is told with the allocator's own figure, as before.
    figure = dict(zip(whole.times_ns, whole.in_use_bytes, strict=True))
    same = {(b.requested_bytes, whole.times_ns[b.allocated_at]) for b in whole.blocks
            if b.allocated_at is not None}  # fmt: skip
    largest = sorted((b.given_bytes for b in whole.blocks), reverse=True)[: most // 2]
    for block in fewer.blocks:
        at = block.allocated_at
        if at is not None and largest and block.given_bytes > largest[-1]:
            time = fewer.times_ns[at]
            if (block.requested_bytes, time) in same and block.operation:
                assert fewer.in_use_bytes[at] == figure[time]


def test_folded_says_how_many_blocks_are_no_longer_there(timeline):
    fewer = folded(timeline, 100)
    merged = [block for block in fewer.blocks if not block.operation]
    assert fewer.folded >= len(timeline.blocks) - len(fewer.blocks)
    assert {block.layer for block in merged} <= {"dense", "conv", None}


def test_many_small_blocks_are_folded_until_the_file_is_small(tmp_path):
    chance = random.Random(2)
    pairs = lifetimes(30_000, chance)
    big = synthetic(pairs, [chance.randrange(1, 10**7) for _ in pairs], 10**6)
    path = tmp_path / "big.json.gz"
    write_timelines(path, [big], limit_bytes=150_000)
    assert path.stat().st_size <= 150_000
    (read,) = timelines_in(timeline_text(path))
    assert read.folded > 0
    assert read.peak_bytes == big.peak_bytes
    assert live_bytes(read)[1] == read.in_use_bytes
    with gzip.open(path) as file:
        assert file.read(1) == b"{"
