"""One representation of a step's operations, one liveness pass, one interface."""

from kerasmem.memory.program.liveness import Plan, plan, with_trials
from kerasmem.memory.program.operations import Op, Program, Shape, Tensor
from kerasmem.memory.program.run import Life, Peak, allocator, live, peak_of

__all__ = [
    "Life",
    "Op",
    "Peak",
    "Plan",
    "Program",
    "Shape",
    "Tensor",
    "allocator",
    "live",
    "peak_of",
    "plan",
    "with_trials",
]
