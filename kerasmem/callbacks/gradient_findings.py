"""What is wrong with the gradients of a run, in words."""

import math
from collections.abc import Iterator, Sequence
from statistics import median

from kerasmem.records import Finding, GradientRecord, VariableGradient

VANISHED = 1e-6
"""Share of the largest kernel's gradient norm below which a kernel's has vanished."""

EXPLODED = 100.0
"""Multiple of the median norm of the epochs before from which a norm has exploded."""

TOO_LARGE_UPDATE = 1.0
"""Update-to-weight ratio from which a layer is overwritten rather than trained."""

LEAST_SAMPLES = 3
"""Sampled updates, of epochs in a row, below which nothing is said of one layer."""

_LEAST_EPOCHS = 3
_KERNELS = ("kernel", "embeddings")


class GradientFindings:
    """Looks at one epoch after the other and tells each thing once.

    | kind | rule |
    |---|---|
    | `nonfinite gradient` | a step's gradient held NaN or infinity |
    | `dead layer` | every gradient of a layer was exactly zero in every sampled step |
    | `vanishing gradient` | a kernel's norm is below a millionth of the largest one's |
    | `exploding gradient` | a norm is 100 times the median of at least three epochs |
    | `too large update` | after the first epoch a kernel's mean update exceeds it |

    Gradients shrink or grow from layer to layer by a factor, so orders of magnitude
    lie between healthy layers and others (Glorot and Bengio, "Understanding the
    difficulty of training deep feedforward neural networks", 2010; Pascanu, Mikolov
    and Bengio, "On the difficulty of training recurrent neural networks", 2013). A
    healthy update is about a thousandth of the weight.

    Args:
        monitor: class name of the callback that asks.
    """

    def __init__(self, monitor: str) -> None:
        self._monitor = monitor
        self._norms: list[float] = []
        self._told: set[tuple[str, str | None]] = set()
        self._samples: dict[tuple[str, str], int] = {}

    def after_epoch(
        self,
        record: GradientRecord,
        nonfinite_paths: Sequence[str] = (),
        first_nonfinite: int | None = None,
        skipped_steps: int = 0,
    ) -> list[Finding]:
        """Return what is new after an epoch.

        Args:
            record: the epoch's figures.
            nonfinite_paths: the variables whose gradient was not finite in the first
                update that was made with such a gradient.
            first_nonfinite: index in the epoch of that update, None if there is none.
            skipped_steps: number of steps that loss scaling skipped for that reason.
        """
        kernels = [v for v in record.variables if v.path.endswith(_KERNELS)]
        of_layers = [*_dead(record.variables), *_vanishing(kernels)]
        if self._norms:
            of_layers += _too_large(kernels)
        found = [
            *_nonfinite(record, nonfinite_paths, first_nonfinite, skipped_steps),
            *self._lasting(of_layers),
            *self._exploding(record, kernels),
        ]
        if math.isfinite(record.norm):
            self._norms.append(record.norm)
        return [
            Finding(kind, text, record.epoch, layer, self._monitor)
            for kind, layer, text in found
            if self._is_new(kind, layer)
        ]

    def _is_new(self, kind: str, layer: str | None) -> bool:
        is_new = (kind, layer) not in self._told
        self._told.add((kind, layer))
        return is_new

    def _lasting(
        self, found: Sequence[tuple[str, str, str, int]]
    ) -> Iterator[tuple[str, str, str]]:
        """Yield what has been so in enough sampled updates, over epochs in a row."""
        before, self._samples = self._samples, {}
        for kind, layer, text, samples in found:
            seen = before.get((kind, layer), 0) + samples
            self._samples[kind, layer] = seen
            if seen >= LEAST_SAMPLES:
                yield kind, layer, text

    def _exploding(
        self, record: GradientRecord, kernels: Sequence[VariableGradient]
    ) -> Iterator[tuple[str, str | None, str]]:
        if len(self._norms) < _LEAST_EPOCHS:
            return
        usual = median(self._norms)
        if not usual or not record.norm_max >= EXPLODED * usual:
            return
        largest = max(kernels, key=lambda v: v.max_abs, default=None)
        layer = layer_of(largest.path) if largest else None
        where = f" The largest entry is in {layer}." if layer else ""
        yield (
            "exploding gradient",
            layer,
            f"The gradient's norm reached {record.norm_max:.3g}, "
            f"{record.norm_max / usual:,.0f} times its usual {usual:.3g}.{where} A "
            "lower learning rate or clipnorm bounds the step.",
        )


def layer_of(path: str) -> str:
    """Return the path of the layer that a variable belongs to.

    Example:
        >>> layer_of("block/dense/kernel")
        'block/dense'
    """
    return path.rpartition("/")[0] or path


def _nonfinite(
    record: GradientRecord,
    paths: Sequence[str],
    first: int | None,
    skipped: int,
) -> Iterator[tuple[str, str | None, str]]:
    made = record.nonfinite_steps - skipped
    if made <= 0:
        return  # loss scaling skips a step now and then, as it should
    layers = list(dict.fromkeys(map(layer_of, paths)))
    names = ", ".join(layers[:5]) + (", ..." if len(layers) > 5 else "")
    where = f" in {names}" if layers else ""
    at = f", first in step {first} of the epoch{where}" if first is not None else ""
    yield (
        "nonfinite gradient",
        layers[0] if len(layers) == 1 else None,
        f"The gradient held NaN or infinity in {made} of {record.steps} updates{at}. "
        "The weights took them over; the loss need not show it.",
    )


def _dead(
    variables: Sequence[VariableGradient],
) -> Iterator[tuple[str, str, str, int]]:
    by_layer: dict[str, list[VariableGradient]] = {}
    for variable in variables:
        by_layer.setdefault(layer_of(variable.path), []).append(variable)
    for layer, own in by_layer.items():
        samples = min(variable.steps for variable in own)
        if all(map(_is_zero, own)):
            yield (
                "dead layer",
                layer,
                f"Every gradient of {layer} was exactly zero in all {samples} sampled "
                "updates of the epoch: it does not learn. Its output may be cut off "
                "behind it, as by a ReLU that no input passes.",
                samples,
            )


def _is_zero(variable: VariableGradient) -> bool:
    return variable.zero_fraction == 1.0 and not variable.nonfinite


def _vanishing(
    kernels: Sequence[VariableGradient],
) -> Iterator[tuple[str, str, str, int]]:
    largest = max(kernels, key=lambda v: v.norm, default=None)
    for kernel in kernels:
        if largest and 0 < kernel.norm < VANISHED * largest.norm:
            layer = layer_of(kernel.path)
            yield (
                "vanishing gradient",
                layer,
                f"The gradient of {layer} has a norm of {kernel.norm:.2g}, that of "
                f"{layer_of(largest.path)} one of {largest.norm:.2g}: {layer} hardly "
                "learns. Other activations, normalization or skip connections help.",
                kernel.steps,
            )


def _too_large(
    kernels: Sequence[VariableGradient],
) -> Iterator[tuple[str, str, str, int]]:
    for kernel in kernels:
        if kernel.update_ratio is not None and kernel.update_ratio > TOO_LARGE_UPDATE:
            layer = layer_of(kernel.path)
            yield (
                "too large update",
                layer,
                f"An update of {layer} is {kernel.update_ratio:.1f} times as large as "
                "its weights: it is overwritten rather than trained. A lower learning "
                "rate helps.",
                kernel.steps,
            )
