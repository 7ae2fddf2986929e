"""From the events of an allocator to blocks that have a layer, a phase, a category."""

from kerasmem.memory.timeline.categories import timelines
from kerasmem.memory.timeline.watched import Watched, watched, watched_again

__all__ = ["Watched", "timelines", "watched", "watched_again"]
