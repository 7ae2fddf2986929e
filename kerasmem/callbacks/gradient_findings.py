"""What is wrong with the gradients of a run, in words."""

import math
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from statistics import median

from kerasmem.callbacks import gradient_signs as signs
from kerasmem.callbacks.gradient_signs import (
    LEAST_SAMPLES,
    LearningRate,
    Sign,
    divergence_text,
    layer_of,
    layer_words,
    layers_of,
    runs,
)
from kerasmem.records import Finding, GradientRecord, VariableGradient

EXPLODED = 100.0
"""Multiple of the median norm of the epochs before from which a norm has exploded."""

ABSURDLY_EXPLODED = 1e4
"""The same where less came before: one or two epochs, or the first update alone."""

_LEAST_EPOCHS = 3
_KERNELS = ("kernel", "embeddings")


class GradientFindings:
    """Looks at one epoch after the other and tells each thing once.

    | kind | rule |
    |---|---|
    | `divergence` | updates throw the weights away, see `divergence_text` |
    | `nonfinite gradient` | a step's gradient held NaN or infinity |
    | `dead layer` | every gradient of a layer was exactly zero in every sampled step |
    | `vanishing gradient` | a kernel's norm is below a millionth of the largest one's |
    | `exploding gradient` | a norm is 100 times the usual, before three epochs 10,000 |
    | `too large update` | a kernel's mean update exceeds it, at first 100 times |

    Layers that show the same in the same epoch are one finding. After a divergence
    nothing more is told of that fit: the rest follows from it.

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
        self._prefix = ""
        self._has_diverged = False
        self._norms: list[float] = []
        self._reported: set[tuple[str, str | None]] = set()
        self._samples: dict[tuple[str, str], int] = {}

    def start_fit(self, model_name: str) -> None:
        """Look at another fit, of a model whose own name is left out of paths."""
        self._prefix = f"{model_name}/"
        self._has_diverged = False
        self._reported.discard(("divergence", None))

    def after_epoch(
        self,
        record: GradientRecord,
        nonfinite_paths: Sequence[str] = (),
        first_nonfinite: int | None = None,
        skipped_steps: int = 0,
        rate: LearningRate | None = None,
    ) -> list[Finding]:
        """Return what is new after an epoch, the gravest first.

        Args:
            record: the epoch's figures.
            nonfinite_paths: the variables whose gradient was not finite in the first
                update that was made with such a gradient.
            first_nonfinite: index in the epoch of that update, None if there is none.
            skipped_steps: number of steps that loss scaling skipped for that reason.
            rate: the highest learning rate of the epoch, or that of that update.
        """
        if self._has_diverged:
            return []
        record = self._within_model(record)
        kernels = [v for v in record.variables if v.path.endswith(_KERNELS)]
        usual = median(self._norms) if self._norms else record.norm_first
        diverged = divergence_text(record, kernels, usual, first_nonfinite, rate)
        if diverged:
            self._has_diverged = True
            found = [_Fault("divergence", diverged, is_fatal=True)]
        else:
            bad = layers_of(map(self._own, nonfinite_paths))
            found = [
                *_nonfinite(record, bad, first_nonfinite, skipped_steps),
                *self._of_layers(record, kernels, rate),
                *self._exploding(record, kernels, usual, rate),
            ]
        if math.isfinite(record.norm):
            self._norms.append(record.norm)
        return [
            Finding(
                fault.kind,
                fault.text,
                record.epoch,
                fault.layers[0] if len(fault.layers) == 1 else None,
                self._monitor,
                "error" if fault.is_fatal else "warning",
                fault.layers,
            )
            for fault in found
            if self._is_new(fault)
        ]

    def _own(self, path: str) -> str:
        return path.removeprefix(self._prefix)

    def _within_model(self, record: GradientRecord) -> GradientRecord:
        variables = (replace(v, path=self._own(v.path)) for v in record.variables)
        return replace(record, variables=tuple(variables))

    def _is_new(self, fault: "_Fault") -> bool:
        layers = (None,) if fault.is_fatal else fault.layers or (None,)
        keys = {(fault.kind, layer) for layer in layers}
        is_new = not keys <= self._reported
        self._reported |= keys
        return is_new

    def _of_layers(
        self,
        record: GradientRecord,
        kernels: Sequence[VariableGradient],
        rate: LearningRate | None,
    ) -> Iterator["_Fault"]:
        before, self._samples = self._samples, {}
        all_layers = layers_of(v.path for v in record.variables)
        of_kernels = layers_of(v.path for v in kernels)

        def lasting(
            kind: str, shown: Iterable[Sign], order: Sequence[str]
        ) -> dict[str, Sign]:
            """Return what has been so in enough sampled updates, and is news."""
            found: dict[str, Sign] = {}
            for sign in shown:
                key = kind, sign.layer
                self._samples[key] = before.get(key, 0) + sign.samples
                if self._samples[key] >= LEAST_SAMPLES:
                    found[sign.layer] = sign
            return {layer: found[layer] for layer in self._news(kind, found, order)}

        kind = "dead layer"
        if dead := lasting(kind, signs.dead(record.variables), all_layers):
            yield _Fault(kind, signs.dead_text(dead, all_layers), tuple(dead))
        kind = "vanishing gradient"
        if vanishing := lasting(kind, signs.vanishing(kernels), of_kernels):
            text = signs.vanishing_text(vanishing, of_kernels, kernels)
            yield _Fault(kind, text, tuple(vanishing))
        kind = "too large update"
        shown = signs.too_large(kernels, is_first=not self._norms)
        if too_large := lasting(kind, shown, of_kernels):
            text = signs.too_large_text(too_large, of_kernels, _lower(rate))
            yield _Fault(kind, text, tuple(too_large))

    def _news(
        self, kind: str, layers: Collection[str], order: Sequence[str]
    ) -> list[str]:
        """Return the layers but for ranges of which one was told: those only grew."""
        return [
            layer
            for run in runs(layers, order)
            if not any((kind, layer) in self._reported for layer in run)
            for layer in run
        ]

    def _exploding(
        self,
        record: GradientRecord,
        kernels: Sequence[VariableGradient],
        usual: float,
        rate: LearningRate | None,
    ) -> Iterator["_Fault"]:
        is_known = len(self._norms) >= _LEAST_EPOCHS
        factor = EXPLODED if is_known else ABSURDLY_EXPLODED
        if not record.norm_max >= factor * usual > 0:
            return
        largest = max(kernels, key=lambda v: v.max_abs, default=None)
        layer = layer_of(largest.path) if largest else None
        where = f" The largest entry is in {layer}." if layer else ""
        yield _Fault(
            "exploding gradient",
            f"The gradient's norm reached {record.norm_max:.3g}, "
            f"{record.norm_max / usual:,.0f} times its usual {usual:.3g}.{where} "
            f"{_lower(rate)} Clipping (clipnorm=1.0) bounds the step.",
            (layer,) if layer else (),
        )


@dataclass(frozen=True)
class _Fault:
    kind: str
    text: str
    layers: tuple[str, ...] = ()
    is_fatal: bool = False


def _lower(rate: LearningRate | None) -> str:
    than = "" if rate is None else f" than {rate.value:g}"
    return f"A lower learning rate{than} helps."


def _nonfinite(
    record: GradientRecord,
    layers: Sequence[str],
    first: int | None,
    skipped: int,
) -> Iterator[_Fault]:
    made = record.nonfinite_steps - skipped
    if made <= 0:
        return  # loss scaling skips a step now and then, as it should
    where = f" in {layer_words(layers, layers)}" if layers else ""
    at = f", first in step {first + 1} of the epoch{where}" if first is not None else ""
    yield _Fault(
        "nonfinite gradient",
        f"The gradient held NaN or infinity in {made} of {record.steps} updates{at}. "
        "The weights took them over; the loss need not show it.",
        tuple(layers),
        is_fatal=True,
    )
