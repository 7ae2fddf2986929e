"""What takes bytes off the peak of a step, and how many by the estimate."""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import keras

from kerasmem.graph.layers import has_graph
from kerasmem.memory.estimate.slots import optimizer_slots
from kerasmem.memory.rematerialize.choose import by_limit
from kerasmem.memory.rematerialize.setting import setting_of
from kerasmem.memory.treated import treatment_of
from kerasmem.optimizers import Adam8bit
from kerasmem.records import MemoryEstimate, Remedy

_HALF_POLICY = "mixed_float16"
_LEAST_SHARE = 0.01
"""Of the peak: what brings less is not worth a change."""


@dataclass(frozen=True)
class FailedStep:
    """A step for which there was too little memory.

    Args:
        model: the model.
        size: samples that went through it at a time.
        input_shape: as in `estimate_memory`.
        estimate: of the step.
        estimated: returns the estimate of that step with other arguments, such as
            `dtype_policy`.
    """

    model: Any
    size: int
    input_shape: Any | None
    estimate: MemoryEstimate
    estimated: Callable[..., MemoryEstimate]


def worthwhile(
    found: Iterable[Remedy | None], estimate: MemoryEstimate
) -> list[Remedy]:
    """Return the remedies that are worth a change, first what brings most."""
    least = _LEAST_SHARE * estimate.peak_bytes
    worth = [one for one in found if one and (one.saves_bytes or 0) > least]
    return sorted(worth, key=lambda one: -(one.saves_bytes or 0))


def _mixed_precision(step: FailedStep) -> Remedy | None:
    if step.model.dtype_policy.name != "float32":
        return None
    half = step.estimated(dtype_policy=_HALF_POLICY)
    return Remedy(
        name="mixed precision",
        how=f"keras.config.set_dtype_policy({_HALF_POLICY!r}) before the model is made",
        saves_bytes=step.estimate.peak_bytes - half.peak_bytes,
    )


def _rematerialization(step: FailedStep) -> Remedy | None:
    if not (step.estimate.training and has_graph(step.model)) or _is_treated(step):
        return None
    plan = by_limit(setting_of(step.model, step.size, step.input_shape), None).plan
    return Remedy(
        name="rematerialization",
        how=f"km.rematerialize(model, batch_size={step.size}) computes activations "
        f"again in the backward pass: a step is {plan.extra_time:.0%} longer (est.)",
        saves_bytes=plan.saved_bytes,
    )


def _int8_activations(step: FailedStep) -> Remedy | None:
    if not step.estimate.training or _is_treated(step):
        return None
    # By how much depends on what else a step holds at its peak: a transformer's falls
    # to a fifth, that of a CNN on a CPU does not.
    return Remedy(
        name="int8 activations",
        how="km.compress_activations(model) keeps them as int8 for the backward pass",
    )


def _adam_8_bit(step: FailedStep) -> Remedy | None:
    optimizer: Any = step.model.optimizer if step.model.compiled else None
    if isinstance(optimizer, keras.optimizers.LossScaleOptimizer):
        optimizer = optimizer.inner_optimizer
    is_adam = isinstance(optimizer, keras.optimizers.Adam)
    if not is_adam or not step.estimate.training:
        return None
    slots = optimizer_slots(Adam8bit(), step.model.trainable_variables)
    state = step.estimate.by_category().get("optimizer_state", 0)
    return Remedy(
        name="8-bit Adam",
        how="km.optimizers.Adam8bit(...) in the place of the optimizer",
        saves_bytes=state - sum(slot.nbytes for slot in slots),
    )


def _is_treated(step: FailedStep) -> bool:
    """Return whether the model keeps fewer activations already."""
    return treatment_of(step.model) is not None


SAVINGS: Mapping[str, Callable[[FailedStep], Remedy | None]] = {
    "mixed precision": _mixed_precision,
    "rematerialization": _rematerialization,
    "int8 activations": _int8_activations,
    "8-bit Adam": _adam_8_bit,
}
"""What each would save; None where there is nothing for it to save."""
