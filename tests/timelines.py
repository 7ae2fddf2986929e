"""What every timeline must fulfil, and ways to sum it up."""

from collections import Counter

from kerasmem.records import Block, Timeline


def live_bytes(timeline):
    """Return the bytes given to the blocks alive before event 0 and after each."""
    changes = [0] * len(timeline.times_ns)
    opening = 0
    for block in timeline.blocks:
        if block.allocated_at is None:
            opening += block.given_bytes
        else:
            changes[block.allocated_at] += block.given_bytes
        if block.freed_at is not None:
            changes[block.freed_at] -= block.given_bytes
    sums, now = [], opening
    for change in changes:
        now += change
        sums.append(now)
    return opening, tuple(sums)


def assert_adds_up(timeline):
    """At every event the live blocks are the allocator's own figure."""
    opening, sums = live_bytes(timeline)
    assert opening == timeline.opening_bytes
    assert sums == timeline.in_use_bytes


def share_known(blocks):
    """Return the share of given bytes with a layer or a category."""
    blocks = list(blocks)
    known = [b for b in blocks if b.layer is not None or b.category != "unknown"]
    return sum(b.given_bytes for b in known) / sum(b.given_bytes for b in blocks)


def made_in_window(timeline):
    return [block for block in timeline.blocks if block.allocated_at is not None]


def held_before(timeline):
    return [block for block in timeline.blocks if block.allocated_at is None]


def requested_by_layer(blocks, category):
    """Return the bytes asked for by layer, of the blocks of one category."""
    sums = Counter()
    for block in blocks:
        if block.category == category:
            sums[block.layer] += block.requested_bytes
    return dict(sums)


def synthetic(lifetimes, sizes, opening_bytes=0):
    """Return a timeline of blocks that live from one event to another.

    Args:
        lifetimes: pairs of event numbers, together 0, 1, 2, ..., each once; None in
            place of a free that never comes.
        sizes: bytes of each block.
        opening_bytes: of one block that stays.
    """
    layers = ("dense", "conv", None)
    blocks = [
        Block(size, size, 0, *span, "op", layers[size % 3], "forward", "activation")
        for span, size in zip(lifetimes, sizes, strict=True)
    ]
    if opening_bytes:
        what = ("", None, "unknown", "unknown")
        blocks.append(Block(opening_bytes, opening_bytes, 0, None, None, *what))
    events = sum(1 + (end is not None) for _, end in lifetimes)
    bare = Timeline(
        "a", "profiler", 0, 1, opening_bytes, tuple(range(events)), (0,) * events,
        (), (0.5,) * events, tuple(blocks),
    )  # fmt: skip
    return Timeline(**{**vars(bare), "in_use_bytes": live_bytes(bare)[1]})
