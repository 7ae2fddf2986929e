"""Out of memory: why, what filled it, how many micro-batches would fit, what helps.

with noting_refusals() as refusals:
    try:
        step()
    except Exception as error:
        cause = classify(error, model, refusals=refusals)
        if cause is None:
            raise
# Here the error and its traceback are gone, and what they held can be freed.
found = post_mortem(model, cause, StepContext(batch_size=1024, step=7))
raise out_of_memory_error(found)
"""

from kerasmem.memory.oom.cause import classify, noting_refusals, out_of_memory_error
from kerasmem.memory.oom.examination import post_mortem
from kerasmem.memory.oom.fitting import Fitting, Room, StepContext, fewest_micro_batches

__all__ = [
    "Fitting",
    "Room",
    "StepContext",
    "classify",
    "fewest_micro_batches",
    "noting_refusals",
    "out_of_memory_error",
    "post_mortem",
]
