"""Rules for divergence, dead layers, vanishing gradients and too large updates."""

import inspect
import math
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from statistics import median

import keras

from kerasmem.backends.gradients import innermost
from kerasmem.graph.values import to_numpy
from kerasmem.records import GradientRecord, VariableGradient
from kerasmem.types import Optimizer

_MOST_RANGES = 4


def layer_of(path: str) -> str:
    """Return the layer path of a variable path.

    Example:
        >>> layer_of("block/dense/kernel")
        'block/dense'
    """
    return path.rpartition("/")[0] or path


def layers_of(paths: Iterable[str]) -> list[str]:
    """Return the unique layer paths of variable paths, in order."""
    return list(dict.fromkeys(map(layer_of, paths)))


def runs(layers: Collection[str], order: Sequence[str]) -> Iterator[list[str]]:
    """Yield runs of `layers` that are consecutive in `order`, the order of the model.

    Example:
        >>> list(runs({"a", "b", "d"}, "abcde"))
        [['a', 'b'], ['d']]
    """
    run: list[str] = []
    for layer in order:
        if layer in layers:
            run.append(layer)
        elif run:
            yield run
            run = []
    if run:
        yield run


def layer_words(layers: Collection[str], order: Sequence[str]) -> str:
    """Return a phrase that lists layers, with consecutive layers as a range.

    Example:
        >>> layer_words({"a"}, "abcdefg"), layer_words({"a", "c", "d", "e"}, "abcdefg")
        ('a', 'layers a, c to e')
    """
    parts = [
        part
        for run in runs(layers, order)
        for part in ([f"{run[0]} to {run[-1]}"] if len(run) > 2 else run)
    ]
    more = len(parts) - _MOST_RANGES
    words = ", ".join(parts[:_MOST_RANGES]) + (f" and {more} more" if more > 0 else "")
    return words if len(layers) == 1 else f"layers {words}"


@dataclass(frozen=True)
class LearningRate:
    """A learning rate, with the class name and the default rate of the optimizer."""

    value: float
    optimizer: str
    usual: float | None


def learning_rate(
    optimizer: Optimizer, updates_ago: Sequence[int]
) -> LearningRate | None:
    """Return the highest learning rate of some updates, or None if unknown.

    In `updates_ago`, 1 is the latest update. A `MultiOptimizer` has no single rate.
    """
    optimizer = innermost(optimizer)
    if isinstance(optimizer, keras.optimizers.MultiOptimizer):
        return None
    default = inspect.signature(type(optimizer)).parameters.get("learning_rate")
    usual = default.default if default else None
    value = max(_value(optimizer, ago) for ago in updates_ago)
    if not math.isfinite(value):
        return None
    return LearningRate(
        value=value,
        optimizer=type(optimizer).__name__,
        usual=usual if isinstance(usual, float) else None,
    )


def _value(optimizer: Optimizer, updates_ago: int) -> float:
    # Private: the public attribute has only the value for the next step.
    schedule = optimizer._learning_rate
    if not isinstance(schedule, keras.optimizers.schedules.LearningRateSchedule):
        return float(to_numpy(optimizer.learning_rate))
    batches = updates_ago * (optimizer.gradient_accumulation_steps or 1)
    return float(to_numpy(schedule(optimizer._iterations - batches)))


OVERWRITTEN = 10.0
"""Median update-to-weight ratio from which the weights count as overwritten."""

LOST = 3.0
"""The ratio for one kernel if there is another sign of divergence."""

GROWN = 1e3
"""Ratio to the usual gradient norm from which growth is a sign of divergence."""

_LEAST_KERNELS = 3  # with fewer kernels, one initialized near zero sets the median
_SYMPTOMS_ALONE = 2
_FAR_ABOVE = 10.0


def divergence_text(
    record: GradientRecord,
    kernels: Sequence[VariableGradient],
    usual_norm: float,
    first_nonfinite: int | None,
    rate: LearningRate | None,
) -> str | None:
    """Return a message if the training diverged in an epoch, else None.

    It diverged if the median update is `OVERWRITTEN` times as large as the kernel. One
    update of `LOST` times the kernel also counts, together with another sign: a
    gradient that has grown, is nonfinite or zero. A healthy ratio is about 0.001.
    """
    with_ratio = [kernel for kernel in kernels if kernel.update_ratio is not None]
    worst = max(with_ratio, key=_ratio, default=None)
    symptoms = list(_symptoms(record, usual_norm, first_nonfinite))
    if worst is None:
        # Without per-variable statistics, only the norms can show the divergence.
        if len(symptoms) < _SYMPTOMS_ALONE:
            return None
    else:
        is_overwritten = (
            len(with_ratio) >= _LEAST_KERNELS
            and median(map(_ratio, with_ratio)) >= OVERWRITTEN
        )
        if not (is_overwritten or (symptoms and _ratio(worst) >= LOST)):
            return None
        update = (
            f"an update of {layer_of(worst.path)} was {_times(_ratio(worst))} times "
            "as large as its weights (about 0.001 is healthy)"
        )
        symptoms.insert(0, update)
    evidence = " and ".join(filter(None, (", ".join(symptoms[:-1]), symptoms[-1])))
    return _text(f"In epoch {record.epoch + 1} {evidence}.", rate)


def _symptoms(
    record: GradientRecord, usual_norm: float, first_nonfinite: int | None
) -> Iterator[str]:
    if record.norm_max >= GROWN * usual_norm > 0:
        yield f"the gradient norm rose from {usual_norm:.2g} to {record.norm_max:.2g}"
    if first_nonfinite is not None:
        yield f"the gradient contained NaN or infinity from step {first_nonfinite + 1}"
    if record.norm_last == 0.0:
        yield "the last gradient was exactly zero"


def _text(evidence: str, rate: LearningRate | None) -> str:
    advice = "The weights are lost: restart from an earlier checkpoint."
    if rate is None:
        return f"The training diverged. {evidence} Use a lower learning rate. {advice}"
    if rate.usual is not None and rate.value <= _FAR_ABOVE * rate.usual:
        return (
            f"The training diverged at a learning rate of {rate.value:g}, which is not "
            f"unusual for {rate.optimizer}. {evidence} Inputs or targets with a scale "
            "far from 1 can cause this: normalize them, clip the gradient "
            f"(clipnorm=1.0) or lower the rate. {advice}"
        )
    usual = (
        ""
        if rate.usual is None
        else f" Keras's default for {rate.optimizer} is {rate.usual:g}."
    )
    what = f"The learning rate of {rate.value:g} is far too large."
    return f"{what} {evidence}{usual} {advice}"


def _times(ratio: float) -> str:
    return f"{ratio:,.0f}" if 100 <= ratio < 1e6 else f"{ratio:.2g}"


def _ratio(kernel: VariableGradient) -> float:
    return kernel.update_ratio or 0.0


VANISHED = 1e-6
"""Ratio to the largest kernel gradient norm below which a gradient has vanished."""

TOO_LARGE_UPDATE = 1.0
"""Update-to-weight ratio from which a layer is overwritten rather than trained."""

ABSURD_UPDATE = 100.0
"""The ratio for the first epoch, where weights initialized near zero may double."""

LEAST_SAMPLES = 3
"""Minimum number of sampled updates, over consecutive epochs, for a finding."""


@dataclass(frozen=True)
class Sign:
    """A problem of one layer in one epoch: a norm or ratio in a number of updates."""

    layer: str
    value: float
    samples: int


def dead(variables: Sequence[VariableGradient]) -> Iterator[Sign]:
    """Yield the layers whose gradients were all exactly zero."""
    by_layer: dict[str, list[VariableGradient]] = {}
    for variable in variables:
        by_layer.setdefault(layer_of(variable.path), []).append(variable)
    for layer, own in by_layer.items():
        if all(one.zero_fraction == 1.0 and not one.nonfinite for one in own):
            yield Sign(layer, 0.0, min(one.steps for one in own))


def vanishing(kernels: Sequence[VariableGradient]) -> Iterator[Sign]:
    """Yield the layers whose kernel gradient has vanished."""
    largest = max((kernel.norm for kernel in kernels), default=0.0)
    for kernel in kernels:
        if 0 < kernel.norm < VANISHED * largest:
            yield Sign(layer_of(kernel.path), kernel.norm, kernel.steps)


def too_large(kernels: Sequence[VariableGradient], *, is_first: bool) -> Iterator[Sign]:
    """Yield the layers whose updates are larger than their weights.

    The first epoch has a higher threshold.
    """
    for kernel in kernels:
        ratio = kernel.update_ratio or 0.0
        if ratio >= ABSURD_UPDATE:
            yield Sign(layer_of(kernel.path), ratio, LEAST_SAMPLES)
        elif ratio > TOO_LARGE_UPDATE and not is_first:
            yield Sign(layer_of(kernel.path), ratio, kernel.steps)


def dead_text(signs: Mapping[str, Sign], order: Sequence[str]) -> str:
    """Return a message about dead layers."""
    samples = min(sign.samples for sign in signs.values())
    it, does, its = (
        ("it", "does", "Its") if len(signs) == 1 else ("they", "do", "Their")
    )
    return (
        f"Every gradient of {layer_words(signs, order)} was exactly zero in all "
        f"{samples} sampled updates of the epoch: {it} {does} not train. {its} output "
        "may be blocked by a later layer, such as a ReLU that is zero for all inputs."
    )


def vanishing_text(
    signs: Mapping[str, Sign],
    order: Sequence[str],
    kernels: Sequence[VariableGradient],
) -> str:
    """Return a message about vanishing gradients."""
    largest = max(kernels, key=lambda kernel: kernel.norm)
    where = layer_words(signs, order)
    norms = _range([sign.value for sign in signs.values()])
    what = (
        f"The gradient norm of {where} is {norms}, compared with "
        f"{largest.norm:.2g} in {layer_of(largest.path)}: {where} hardly trains."
        if len(signs) == 1
        else f"The gradient norms of {where} are {norms}, compared with "
        f"{largest.norm:.2g} in {layer_of(largest.path)}: these {len(signs)} "
        "layers hardly train."
    )
    return f"{what} Use other activations, normalization or skip connections."


def too_large_text(signs: Mapping[str, Sign], order: Sequence[str], advice: str) -> str:
    """Return a message about too large updates."""
    it = "it is" if len(signs) == 1 else "they are"
    its = "its" if len(signs) == 1 else "their"
    ratios = _range([sign.value for sign in signs.values()])
    return (
        f"An update of {layer_words(signs, order)} is {ratios} times as large as {its} "
        f"weights: {it} overwritten rather than trained. {advice}"
    )


def _range(values: Sequence[float]) -> str:
    low, high = f"{min(values):.2g}", f"{max(values):.2g}"
    return low if low == high else f"{low} to {high}"
