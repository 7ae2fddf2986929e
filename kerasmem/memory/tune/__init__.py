"""Peak and step time of a training under each option, measured."""

from kerasmem.memory.tune.advice import leave_room
from kerasmem.memory.tune.tune import tune

__all__ = ["leave_room", "tune"]
