"""From two small batches to a large one, against arithmetic."""

import pytest

from kerasmem.backends.profile import MemoryEvent
from kerasmem.memory.estimate.measured import (
    extended,
    peak_in_pool,
    peak_of,
    small_batches,
)

pytestmark = pytest.mark.one_backend

BEFORE = 1000


def step(*blocks):
    """Return events of named blocks that overlap as they are listed: +a, +b, -a, -b."""
    events, now, sizes = [], BEFORE, {}
    for sign, name, size in blocks:
        comes = sign == "+"
        sizes.setdefault(name, size)
        now += sizes[name] if comes else -sizes[name]
        events.append(
            MemoryEvent(
                time_ns=len(events),
                is_allocation=comes,
                address=hash(name),
                requested_bytes=sizes[name],
                given_bytes=sizes[name],
                in_use_bytes=now,
                operation=name if comes else "",
            )
        )
    return events


def training(batch_size):
    """Activations grow with the batch, the optimizer's slots do not."""
    return step(
        ("+", "activation", 100 * batch_size),
        ("-", "activation", 0),
        ("+", "optimizer", 5000),
        ("-", "optimizer", 0),
    )


def test_blocks_grow_and_the_fullest_moment_changes():
    small = [training(8), training(16)]
    assert [peak_of(events) for events in small] == [BEFORE + 5000] * 2
    assert peak_of(extended(small, (8, 16), 64)) == BEFORE + 6400


def test_the_order_in_which_threads_allocate_does_not_matter():
    first = step(("+", "a", 8), ("+", "a", 80))
    second = step(("+", "a", 160), ("+", "a", 16))
    for one, size in zip(first + second, (8, 80, 160, 16), strict=True):
        object.__setattr__(one, "requested_bytes", size)
    large = extended([first, second], (1, 2), 3)
    assert [event.requested_bytes for event in large] == [240, 24]


def test_a_pool_rounds_what_it_gives():
    events = step(("+", "a", 300))
    assert peak_of(events) == BEFORE + 300
    assert peak_in_pool(events) == BEFORE + 512


def test_a_small_batch_runs_itself():
    assert small_batches(16) == (16,)
    assert small_batches(17) == (8, 16)
