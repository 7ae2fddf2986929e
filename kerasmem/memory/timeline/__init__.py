"""Converts allocator events into blocks with a layer, a phase and a category."""

from kerasmem.memory.timeline.categories import timelines
from kerasmem.memory.timeline.watched import Watched, watched, watched_again

__all__ = ["Watched", "timelines", "watched", "watched_again"]
