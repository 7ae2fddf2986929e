"""Measures peak memory and step time of a training under different options."""

from kerasmem.extras.tune.advice import leave_room
from kerasmem.extras.tune.tune import tune

__all__ = ["leave_room", "tune"]
