"""One variant, in a process of its own that may fail."""

from collections.abc import Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import asdict, dataclass
from typing import Any

import keras

from kerasmem.backends.exhaustion import is_out_of_memory
from kerasmem.backends.trace import tracer
from kerasmem.errors import KerasMemError
from kerasmem.memory.estimate.child import job_of, request_of
from kerasmem.memory.estimate.request import Request
from kerasmem.memory.measure import COUNTING_ALLOCATOR
from kerasmem.memory.tune.change import changed
from kerasmem.memory.tune.measure import measure
from kerasmem.memory.tune.retracing import traced_steps
from kerasmem.memory.tune.variants import Variant
from kerasmem.processes import ChildDiedError, run_in_child
from kerasmem.records import TracedStep, VariantFigures

_COUNTING = {"TF_CPU_ALLOCATOR_USE_BFC": COUNTING_ALLOCATOR["TF_CPU_ALLOCATOR_USE_BFC"]}
"""TensorFlow's allocator counts, but kernels are those the user trains with."""

_BETWEEN = ". Expected: an answer. Received: "
_LONGEST_REASON = 200


@dataclass(frozen=True)
class Trial:
    """What came of one variant.

    Args:
        figures: its line in the table.
        traced_steps: steps in which retracing was counted, if that was asked for.
        not_counted: why it was not, `""` if it was or was not asked for.
    """

    figures: VariantFigures
    traced_steps: tuple[TracedStep, ...] = ()
    not_counted: str = ""


def attempt(request: Request, variant: Variant, *, count_traces: bool = False) -> Trial:
    """Return the figures of `variant`, or why there are none.

    Args:
        request: the model as compiled, and its batch.
        variant: what to change.
        count_traces: whether retracing is counted, too.
    """
    answered: dict[str, Any]
    try:
        job = {
            **job_of(changed(request, variant)),
            "steps_per_update": variant.steps_per_update,
            "left_out": variant.left_out,
            "devices": variant.devices,
            "count_traces": count_traces,
        }
        answered = run_in_child(
            f"{__name__}:answer", job, backend=request.backend, environment=_COUNTING
        )
    except ChildDiedError as error:
        _, _, how = str(error).replace(_BETWEEN, ": ").partition(" ended by ")
        answered = {"reason": _one_line(f"its process ended by {how}")}
    except KerasMemError as error:
        answered = {"reason": _one_line(str(error))}
    steps = [TracedStep(**step) for step in answered.pop("traced_steps", [])]
    not_counted = answered.pop("not_counted", "")
    figures = VariantFigures(
        name=variant.name,
        how=variant.how,
        batch_size=request.batch_size // variant.steps_per_update,
        steps_per_update=variant.steps_per_update,
        **answered,
    )
    return Trial(figures, tuple(steps), not_counted)


def answer(job: Mapping[str, Any]) -> dict[str, Any]:
    """Run the steps, and return figures or the reason; this happens in the child."""
    try:
        if job["left_out"] is not None:
            tracer("options").leave_out(job["left_out"])
        with _devices(job["devices"]):
            found = measure(request_of(job), job["steps_per_update"])
    # Whatever a framework raises about an option is the reason of its line.
    except Exception as error:  # noqa: BLE001
        return {"reason": _reason(error)}
    return found | (_traces(request_of(job)) if job["count_traces"] else {})


def _traces(request: Request) -> dict[str, Any]:
    try:
        return {"traced_steps": [asdict(step) for step in traced_steps(request)]}
    except Exception as error:  # noqa: BLE001 - a smaller batch may be what it refuses
        return {
            "not_counted": f"fit with a smaller last batch failed: {_reason(error)}"
        }


def _devices(count: int) -> AbstractContextManager[Any]:
    if count == 1:
        return nullcontext()
    if keras.backend.backend() == "tensorflow":
        return tracer("options").data_parallel()
    return keras.distribution.DataParallel().scope()


def _reason(error: Exception) -> str:
    if is_out_of_memory(error):
        return f"out of memory: {_one_line(str(error))}"
    return f"{type(error).__name__}: {_one_line(str(error))}"


def _one_line(text: str) -> str:
    return " ".join(text.split())[:_LONGEST_REASON]
