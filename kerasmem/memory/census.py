"""How many Python objects there are, and of which kinds."""

import gc
import sys
from collections import Counter

_FEW = 100


def object_count() -> int:
    """Return the number of blocks that Python's allocator has handed out.

    About one per object. Takes microseconds.
    """
    return sys.getallocatedblocks()


def census() -> Counter[str]:
    """Return the number of objects by type, of types with a hundred or more.

    Only of those that the garbage collector knows: not of numbers, text and arrays.
    Takes tens of milliseconds.
    """
    kinds = Counter(type(each) for each in gc.get_objects())
    return Counter(
        {
            f"{kind.__module__}.{kind.__qualname__}".removeprefix("builtins."): number
            for kind, number in kinds.items()
            if number >= _FEW
        }
    )


def grown(before: Counter[str], after: Counter[str], least: float) -> list[str]:
    """Return the at most three types that grew most, such as `"dict (+400)"`.

    Args:
        before: an earlier census.
        after: a later one.
        least: growth, in objects, that is worth a word.
    """
    growth = (after - before).most_common(3)
    return [f"{name} (+{number:,})" for name, number in growth if number >= least]
