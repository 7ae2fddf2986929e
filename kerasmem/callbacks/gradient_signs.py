"""Signs of a training gone wrong: divergence, dead, vanishing, too large updates."""

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
    """Return the path of the layer that a variable belongs to.

    Example:
        >>> layer_of("block/dense/kernel")
        'block/dense'
    """
    return path.rpartition("/")[0] or path


def layers_of(paths: Iterable[str]) -> list[str]:
    """Return the layers that some variables belong to, each once, in their order."""
    return list(dict.fromkeys(map(layer_of, paths)))


def runs(layers: Collection[str], order: Sequence[str]) -> Iterator[list[str]]:
    """Yield the layers in parts that follow each other.

    Args:
        layers: some of the layers.
        order: all of them, in the order of the model.

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
    """Return the layers in words, without the word for a single one.

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
    """A learning rate, and what it is to be compared with.

    Args:
        value: the learning rate.
        optimizer: class name of the optimizer.
        usual: that class's default, None if it has none.
    """

    value: float
    optimizer: str
    usual: float | None


def learning_rate(
    optimizer: Optimizer, updates_ago: Sequence[int]
) -> LearningRate | None:
    """Return the highest learning rate of some updates; None if there is none.

    Args:
        optimizer: a Keras optimizer; one of several parts has none of its own.
        updates_ago: which updates, 1 for the latest; a schedule has a value for each.
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
    # Private: in public an optimizer tells the value of the next step alone.
    schedule = optimizer._learning_rate
    if not isinstance(schedule, keras.optimizers.schedules.LearningRateSchedule):
        return float(to_numpy(optimizer.learning_rate))
    batches = updates_ago * (optimizer.gradient_accumulation_steps or 1)
    return float(to_numpy(schedule(optimizer._iterations - batches)))


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
    with_ratio = [kernel for kernel in kernels if kernel.update_ratio is not None]
    worst = max(with_ratio, key=_ratio, default=None)
    symptoms = list(_symptoms(record, usual_norm, first_nonfinite))
    if worst is None:
        # Without statistics per variable the norms have to tell alone.
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
    advice = "The weights are lost: begin again from earlier ones."
    if rate is None:
        return (
            f"The training diverged. {evidence} A lower learning rate helps. {advice}"
        )
    if rate.usual is not None and rate.value <= _FAR_ABOVE * rate.usual:
        return (
            f"The training diverged at a learning rate of {rate.value:g}, which is not "
            f"unusual for {rate.optimizer}. {evidence} Inputs or targets far from a "
            "size of 1 do that: scale them, clip the gradient (clipnorm=1.0) or lower "
            f"the rate. {advice}"
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
"""Share of the largest kernel's gradient norm below which a kernel's has vanished."""

TOO_LARGE_UPDATE = 1.0
"""Update-to-weight ratio from which a layer is overwritten rather than trained."""

ABSURD_UPDATE = 100.0
"""The same in the first epoch, in which weights that begin near zero double."""

LEAST_SAMPLES = 3
"""Sampled updates, of epochs in a row, below which nothing is said of one layer."""


@dataclass(frozen=True)
class Sign:
    """What one layer showed in one epoch.

    Args:
        layer: path of the layer.
        value: the figure that gave it away: a norm, or a ratio.
        samples: number of sampled updates in which it did.
    """

    layer: str
    value: float
    samples: int


def dead(variables: Sequence[VariableGradient]) -> Iterator[Sign]:
    """Yield the layers all of whose gradients were exactly zero."""
    by_layer: dict[str, list[VariableGradient]] = {}
    for variable in variables:
        by_layer.setdefault(layer_of(variable.path), []).append(variable)
    for layer, own in by_layer.items():
        if all(one.zero_fraction == 1.0 and not one.nonfinite for one in own):
            yield Sign(layer, 0.0, min(one.steps for one in own))


def vanishing(kernels: Sequence[VariableGradient]) -> Iterator[Sign]:
    """Yield the layers whose kernel's gradient is next to nothing."""
    largest = max((kernel.norm for kernel in kernels), default=0.0)
    for kernel in kernels:
        if 0 < kernel.norm < VANISHED * largest:
            yield Sign(layer_of(kernel.path), kernel.norm, kernel.steps)


def too_large(kernels: Sequence[VariableGradient], *, is_first: bool) -> Iterator[Sign]:
    """Yield the layers whose updates are larger than their weights.

    Args:
        kernels: the kernels' figures.
        is_first: whether no epoch came before; then only what is absurd counts.
    """
    for kernel in kernels:
        ratio = kernel.update_ratio or 0.0
        if ratio >= ABSURD_UPDATE:
            yield Sign(layer_of(kernel.path), ratio, LEAST_SAMPLES)
        elif ratio > TOO_LARGE_UPDATE and not is_first:
            yield Sign(layer_of(kernel.path), ratio, kernel.steps)


def dead_text(signs: Mapping[str, Sign], order: Sequence[str]) -> str:
    """Return in words that layers are dead."""
    samples = min(sign.samples for sign in signs.values())
    it, does, its = (
        ("it", "does", "Its") if len(signs) == 1 else ("they", "do", "Their")
    )
    return (
        f"Every gradient of {layer_words(signs, order)} was exactly zero in all "
        f"{samples} sampled updates of the epoch: {it} {does} not learn. {its} output "
        "may be cut off further on, as by a ReLU that no input passes."
    )


def vanishing_text(
    signs: Mapping[str, Sign],
    order: Sequence[str],
    kernels: Sequence[VariableGradient],
) -> str:
    """Return in words that the gradients of layers have vanished."""
    largest = max(kernels, key=lambda kernel: kernel.norm)
    where = layer_words(signs, order)
    norms = _range([sign.value for sign in signs.values()])
    what = (
        f"The gradient of {where} has a norm of {norms}, that of "
        f"{layer_of(largest.path)} one of {largest.norm:.2g}: {where} hardly learns."
        if len(signs) == 1
        else f"The gradients of {where} have norms of {norms}, that of "
        f"{layer_of(largest.path)} one of {largest.norm:.2g}: these {len(signs)} "
        "layers hardly learn."
    )
    return f"{what} Other activations, normalization or skip connections help."


def too_large_text(signs: Mapping[str, Sign], order: Sequence[str], advice: str) -> str:
    """Return in words that layers are overwritten."""
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
