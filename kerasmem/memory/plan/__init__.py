"""Plans of training steps within a memory limit."""

from kerasmem.memory.plan.memory_plan import MemoryPlan, plan_of
from kerasmem.memory.plan.planner import plan_memory, rematerialize
from kerasmem.records.memory_plan import Piece, PlanOption

__all__ = [
    "MemoryPlan",
    "Piece",
    "PlanOption",
    "plan_memory",
    "plan_of",
    "rematerialize",
]
