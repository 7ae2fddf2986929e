"""Trainings that diverge because their steps are far too large."""

from collections.abc import Iterator, Sequence
from statistics import median

from kerasmem.callbacks.layer_ranges import layer_of
from kerasmem.callbacks.learning_rate import LearningRate
from kerasmem.records import GradientRecord, VariableGradient

OVERWRITTEN = 10.0
"""Update-to-weight ratio of a typical kernel from which the weights are gone."""

LOST = 3.0
"""The same of one kernel, where the gradient has grown, is not finite or all zero."""

GROWN = 1e3
"""Multiple of its usual size from which a norm tells of a divergence."""

_LEAST_KERNELS = 3  # of fewer, one that begins near zero would be typical
_SYMPTOMS_ALONE = 2
_FAR_ABOVE = 10.0


def divergence_text(
    record: GradientRecord,
    kernels: Sequence[VariableGradient],
    usual_norm: float,
    first_nonfinite: int | None,
    rate: LearningRate | None,
) -> str | None:
    """Return in words that an epoch's training diverged; None if it did not.

    It did if the mean update of a typical kernel is `OVERWRITTEN` times as large as the
    kernel, or that of one kernel `LOST` times and nothing is left to learn from. A
    healthy update is about a thousandth of the weight.

    Args:
        record: the epoch's figures.
        kernels: those of its kernels.
        usual_norm: norm of the gradient before, NaN if unknown.
        first_nonfinite: index in the epoch of the first update that was made with a
            gradient that is not finite, None if there is none.
        rate: the learning rate of that update, None if unknown.
    """
    known = [kernel for kernel in kernels if kernel.update_ratio is not None]
    worst = max(known, key=_ratio, default=None)
    symptoms = list(_symptoms(record, usual_norm, first_nonfinite))
    if worst is None:
        # Without statistics per variable the norms have to tell alone.
        if len(symptoms) < _SYMPTOMS_ALONE:
            return None
    else:
        is_overwritten = (
            len(known) >= _LEAST_KERNELS and median(map(_ratio, known)) >= OVERWRITTEN
        )
        if not (is_overwritten or (symptoms and _ratio(worst) >= LOST)):
            return None
        update = (
            f"an update of {layer_of(worst.path)} was {_times(_ratio(worst))} times "
            "as large as its weights (a thousandth is healthy)"
        )
        symptoms.insert(0, update)
    evidence = " and ".join(filter(None, (", ".join(symptoms[:-1]), symptoms[-1])))
    return _text(f"In epoch {record.epoch + 1} {evidence}.", rate)


def _symptoms(
    record: GradientRecord, usual_norm: float, first_nonfinite: int | None
) -> Iterator[str]:
    if record.norm_max >= GROWN * usual_norm > 0:
        yield f"the gradient's norm went from {usual_norm:.2g} to {record.norm_max:.2g}"
    if first_nonfinite is not None:
        yield f"the gradient held NaN or infinity from step {first_nonfinite + 1} on"
    if record.norm_last == 0.0:
        yield "the last gradient was exactly zero"


def _text(evidence: str, rate: LearningRate | None) -> str:
    lost = "The weights are lost: begin again from earlier ones."
    if rate is None:
        return f"The training diverged. {evidence} A lower learning rate helps. {lost}"
    if rate.usual is not None and rate.value <= _FAR_ABOVE * rate.usual:
        return (
            f"The training diverged at a learning rate of {rate.value:g}, which is not "
            f"unusual for {rate.optimizer}. {evidence} Inputs or targets far from a "
            "size of 1 do that: scale them, clip the gradient (clipnorm=1.0) or lower "
            f"the rate. {lost}"
        )
    usual = (
        ""
        if rate.usual is None
        else f" Keras's default for {rate.optimizer} is {rate.usual:g}."
    )
    what = f"The learning rate of {rate.value:g} is far too large."
    return f"{what} {evidence}{usual} {lost}"


def _times(ratio: float) -> str:
    return f"{ratio:,.0f}" if 100 <= ratio < 1e6 else f"{ratio:.2g}"


def _ratio(kernel: VariableGradient) -> float:
    return kernel.update_ratio or 0.0
