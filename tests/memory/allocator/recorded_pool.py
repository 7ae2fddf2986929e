"""The pool of a real device in the middle of its life, found from a trace alone.

A trace tells where every block lies, but not what was free before its first event.
Three rules tell, each a consequence of how the allocator works:

- A block begins where a free chunk begins. So if no block in use ends where it begins,
  something else divides there: the end of a region, or a block that stays in use.
- A block that got more than it asked for got a whole free chunk. So the chunk ended
  where it ends.
- What is taken is the smallest chunk that is large enough. So a chunk that was not
  taken, though what is known of it would have been a better choice, is longer.
"""

from dataclasses import dataclass
from itertools import pairwise

from kerasmem.memory.allocator.bfc import BFCAllocator, Chunk, PoolPolicy, rounded

ROOM = PoolPolicy(limit_bytes=1 << 40)  # the device was far from full


@dataclass
class Stretch:
    """Neighboring addresses that the trace touches; its end may be known or not."""

    begin: int
    end: int
    is_closed: bool


def found_pool(events):
    """Return the stretches that explain all `events`, and the blocks held before."""
    held = _held_before(events)
    stretches = _stretches(events, _borders(events, held))
    while (wrong := first_mismatch(pool_of(stretches, held), events)) is not None:
        _lengthen(stretches, *wrong)
    return stretches, held


def pool_of(stretches, held):
    """Return a simulated allocator in that state; the rest of the pool is left out."""
    allocator = BFCAllocator(ROOM)
    for stretch in stretches:
        within = {a: n for a, n in held.items() if stretch.begin <= a < stretch.end}
        _add_region(allocator, stretch, within)
    return allocator


def first_mismatch(allocator, events):
    """Run `events` until one goes elsewhere; return it and where, None if none does."""
    for event in events:
        if not event["alloc"]:
            allocator.free(event["addr"])
            continue
        address = allocator.allocate(event["requested_bytes"])
        given = allocator.chunk_at(address).size
        if (address, given) != (event["addr"], event["allocation_bytes"]):
            return allocator, event, address
    return None


def _held_before(events):
    alive, held = set(), {}
    for event in events:
        if event["alloc"]:
            alive.add(event["addr"])
        elif event["addr"] in alive:
            alive.remove(event["addr"])
        else:
            held[event["addr"]] = event["allocation_bytes"]
    return held


def _borders(events, held):
    borders, end_of = set(), {a: a + size for a, size in held.items()}
    for event in events:
        begin, size = event["addr"], event["allocation_bytes"]
        if not event["alloc"]:
            del end_of[begin]
            continue
        if begin not in end_of.values():
            borders.add(begin)
        if size > rounded(event["requested_bytes"]) and begin + size not in end_of:
            borders.add(begin + size)
        end_of[begin] = begin + size
    return borders


def _stretches(events, borders):
    found = []
    end_of: dict[int, int] = {}
    for event in events:
        begin = event["addr"]
        end_of[begin] = max(end_of.get(begin, 0), begin + event["allocation_bytes"])
    for begin, end in sorted(end_of.items()):
        if found and begin <= found[-1].end and begin not in borders:
            found[-1].end = max(found[-1].end, end)
        else:
            found.append(Stretch(begin, end, is_closed=False))
    for stretch in found:
        stretch.is_closed = stretch.end in borders
    return found


def _add_region(allocator, stretch, held):
    edges = sorted({stretch.begin, stretch.end, *held, *(a + held[a] for a in held)})
    chunks = [Chunk(a, b - a, requested=held.get(a, 0)) for a, b in pairwise(edges)]
    for one, other in pairwise(chunks):
        one.next, other.previous = other, one
    for chunk in chunks:
        if chunk.is_free:
            allocator._free.add(chunk)
        else:
            allocator._in_use[chunk.address] = chunk
            allocator.in_use_bytes += chunk.size
    allocator._regions.append(chunks[0])
    allocator.pool_bytes += stretch.end - stretch.begin


def _lengthen(stretches, allocator, event, address):
    """Make the stretch longer that the simulator took a block of by mistake."""
    allocator.free(address)
    free = {chunk.address: chunk.size for chunk in allocator.chunks() if chunk.is_free}
    (taken,) = (s for s in stretches if s.begin <= address < s.end)
    enough = free[event["addr"]] + rounded(1)
    if address == event["addr"]:  # taken whole, where it was split
        enough = 2 * event["allocation_bytes"]
    assert not taken.is_closed, event
    assert enough > free[address], event
    taken.end += enough - free[address]
