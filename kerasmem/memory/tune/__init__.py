"""Peak and step time of a training under each option, measured."""

from kerasmem.memory.tune.advice import leave_room
from kerasmem.memory.tune.planned import plan_options
from kerasmem.memory.tune.tune import tune

__all__ = ["leave_room", "plan_options", "tune"]
