"""Analysis of out-of-memory errors: cause, memory use, fitting batch size, remedies.

with noting_refusals() as refusals:
    try:
        step()
    except Exception as error:
        cause = classify(error, model, refusals=refusals)
        if cause is None:
            raise
# The error and its traceback no longer exist, so their tensors can be freed.
report = post_mortem(model, cause, StepContext(batch_size=1024, step=7))
raise out_of_memory_error(report)
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
