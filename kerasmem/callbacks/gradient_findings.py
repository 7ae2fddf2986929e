"""Findings about the gradients of a training run."""

import math
from collections.abc import Collection, Iterator, Sequence
from dataclasses import replace
from functools import partial
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
"""Ratio to the median norm of earlier epochs from which a gradient norm explodes."""

ABSURDLY_EXPLODED = 1e4
"""The ratio for fewer than three earlier epochs."""

_LEAST_EPOCHS = 3
_KERNELS = ("kernel", "embeddings")


class GradientFindings:
    """Checks the gradients of each epoch and reports each problem once.

    | kind | rule |
    |---|---|
    | `divergence` | updates overwrite the weights, see `divergence_text` |
    | `nonfinite gradient` | the gradient of a step contains NaN or infinity |
    | `dead layer` | all gradients of a layer are zero in all sampled steps |
    | `vanishing gradient` | a kernel's norm is below a millionth of the largest norm |
    | `exploding gradient` | norm 100 times the usual, 10,000 times at first |
    | `too large update` | update larger than its kernel, 100 times in the first epoch |

    Layers with the same problem in the same epoch share one finding. After a
    divergence, no other finding is reported for that `fit`.

    Gradients shrink or grow by a factor per layer, so thresholds are large (Glorot and
    Bengio, "Understanding the difficulty of training deep feedforward neural networks",
    2010; Pascanu, Mikolov and Bengio, "On the difficulty of training recurrent neural
    networks", 2013).
    """

    def __init__(self, monitor: str) -> None:
        self._monitor = monitor
        self._prefix = ""
        self._epoch = 0
        self._has_diverged = False
        self._norms: list[float] = []
        self._reported: set[tuple[str, str | None]] = set()
        self._samples: dict[tuple[str, str], int] = {}

    def start_fit(self, model_name: str) -> None:
        """Start a new fit of a model whose name is removed from paths."""
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
        """Return the new findings of an epoch, most severe first.

        `nonfinite_paths` are the variables with a nonfinite gradient in the update with
        the index `first_nonfinite`. `rate` is the learning rate of this update,
        otherwise the highest rate of the epoch.
        """
        if self._has_diverged:
            return []
        self._epoch = record.epoch
        record = self._within_model(record)
        kernels = [v for v in record.variables if v.path.endswith(_KERNELS)]
        usual = median(self._norms) if self._norms else record.norm_first
        divergence = divergence_text(record, kernels, usual, first_nonfinite, rate)
        if divergence:
            self._has_diverged = True
            findings = [self._finding("divergence", divergence, severity="error")]
        else:
            bad = layers_of(map(self._own, nonfinite_paths))
            findings = [
                *self._nonfinite(record, bad, first_nonfinite, skipped_steps),
                *self._of_layers(record, kernels, rate),
                *self._exploding(record, kernels, usual, rate),
            ]
        if math.isfinite(record.norm):
            self._norms.append(record.norm)
        return [finding for finding in findings if self._is_new(finding)]

    def _finding(
        self,
        kind: str,
        text: str,
        layers: Sequence[str] = (),
        severity: str = "warning",
    ) -> Finding:
        layer = layers[0] if len(layers) == 1 else None
        about = (self._epoch, layer, self._monitor, severity, tuple(layers))
        return Finding(kind, text, *about)

    def _own(self, path: str) -> str:
        return path.removeprefix(self._prefix)

    def _within_model(self, record: GradientRecord) -> GradientRecord:
        variables = (replace(v, path=self._own(v.path)) for v in record.variables)
        return replace(record, variables=tuple(variables))

    def _is_new(self, finding: Finding) -> bool:
        layers = (None,) if finding.severity == "error" else finding.layers or (None,)
        keys = {(finding.kind, layer) for layer in layers}
        is_new = not keys <= self._reported
        self._reported |= keys
        return is_new

    def _of_layers(
        self,
        record: GradientRecord,
        kernels: Sequence[VariableGradient],
        rate: LearningRate | None,
    ) -> Iterator[Finding]:
        before, self._samples = self._samples, {}
        all_layers = layers_of(v.path for v in record.variables)
        of_kernels = layers_of(v.path for v in kernels)
        too_large = signs.too_large(kernels, is_first=not self._norms)
        vanishing_text = partial(signs.vanishing_text, kernels=kernels)
        too_large_text = partial(signs.too_large_text, advice=_lower(rate))
        for kind, layer_signs, order, text in (
            ("dead layer", signs.dead(record.variables), all_layers, signs.dead_text),
            (
                "vanishing gradient",
                signs.vanishing(kernels),
                of_kernels,
                vanishing_text,
            ),
            ("too large update", too_large, of_kernels, too_large_text),
        ):
            by_layer: dict[str, Sign] = {}
            for sign in layer_signs:
                key = kind, sign.layer
                self._samples[key] = before.get(key, 0) + sign.samples
                if self._samples[key] >= LEAST_SAMPLES:
                    by_layer[sign.layer] = sign
            if new := {
                layer: by_layer[layer] for layer in self._news(kind, by_layer, order)
            }:
                yield self._finding(kind, text(new, order), list(new))

    def _news(
        self, kind: str, layers: Collection[str], order: Sequence[str]
    ) -> list[str]:
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
    ) -> Iterator[Finding]:
        is_known = len(self._norms) >= _LEAST_EPOCHS
        factor = EXPLODED if is_known else ABSURDLY_EXPLODED
        if not record.norm_max >= factor * usual > 0:
            return
        largest = max(kernels, key=lambda v: v.max_abs, default=None)
        layer = layer_of(largest.path) if largest else None
        where = f" The largest entry is in {layer}." if layer else ""
        yield self._finding(
            "exploding gradient",
            f"The gradient norm reached {record.norm_max:.3g}, "
            f"{record.norm_max / usual:,.0f} times its usual {usual:.3g}.{where} "
            f"{_lower(rate)} Clipping (clipnorm=1.0) bounds the step.",
            [layer] if layer else [],
        )

    def _nonfinite(
        self,
        record: GradientRecord,
        layers: Sequence[str],
        first: int | None,
        skipped: int,
    ) -> Iterator[Finding]:
        updates = record.nonfinite_steps - skipped
        if updates <= 0:
            return  # loss scaling skips steps as part of its normal operation
        where = f" in {layer_words(layers, layers)}" if layers else ""
        at = "" if first is None else f", first in step {first + 1} of the epoch{where}"
        yield self._finding(
            "nonfinite gradient",
            f"The gradient contained NaN or infinity in {updates} of {record.steps} "
            f"updates{at}. They changed the weights, although the loss may not "
            "show it.",
            layers,
            "error",
        )


def _lower(rate: LearningRate | None) -> str:
    than = "" if rate is None else f" than {rate.value:g}"
    return f"Use a lower learning rate{than}."
