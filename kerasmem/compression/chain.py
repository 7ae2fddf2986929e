"""Checks and applies a chain of techniques, with training in between."""

import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import keras
import numpy as np

from kerasmem.backends import current
from kerasmem.compression import batch_norm
from kerasmem.compression.judge import check_drop, check_metric
from kerasmem.compression.measure import METRICS
from kerasmem.compression.recipe import (
    apply_technique,
    as_preset,
    prepare_technique,
    preserve_technique,
)
from kerasmem.compression.technique import Context, Technique, no_samples
from kerasmem.compression.working import fine_tune, seeded_at
from kerasmem.errors import ConfigError, KerasMemWarning
from kerasmem.files.save import Coding
from kerasmem.graph.clone import clone, compiler_of, part_from, unchanged_state
from kerasmem.graph.values import check_finite, to_numpy
from kerasmem.records import SearchReport, WeightChange
from kerasmem.stages import stage
from kerasmem.types import Dataset, Model, Tensor


@dataclass(frozen=True)
class Outcome:
    """Result of a chain or a search.

    `search` is the report of the search, or `None` for a chain.
    """

    model: Any
    steps: tuple[Technique, ...]
    changes: list[WeightChange]
    search: SearchReport | None = None


class Chain:
    """Techniques to apply in sequence.

    `steps` are techniques, a recipe or a preset.

    Raises:
        ConfigError: If `steps` is invalid.
    """

    def __init__(self, steps: Any, max_drop: float | None) -> None:
        preset = as_preset(steps)
        self.epochs: int = preset.epochs
        self.coding: Coding = preset.coding
        self.steps, self._max_drop = preset.steps, max_drop

    def check(self, data: Dataset, validation_data: Dataset, epochs: int) -> None:
        """Raises `ConfigError` if a step lacks data or undoes an earlier step."""
        del validation_data
        names = [step.name for step in self.steps]
        trains = [step.name for step in self.steps if step.trains]
        if trains and data is None:
            raise no_samples(trains[0])
        if epochs and data is None:
            raise ConfigError(
                "Fine-tuning needs samples with labels. Received: "
                f"fine_tune_epochs={epochs}, data=None. Next: give data=(x, y), or "
                "fine_tune_epochs=0 (--data, --fine-tune-epochs 0 on the command line)."
            )
        if epochs and not self._is_trainable:
            raise ConfigError(
                "No step leaves the model trainable, so it cannot be fine-tuned. "
                f"Received: fine_tune_epochs={epochs}, steps={names}."
            )
        _check_order(self.steps)

    @property
    def _is_trainable(self) -> bool:
        return any(step.trains_on for step in self.steps)

    @property
    def freezes(self) -> bool:
        """Whether no step trains or leaves the model trainable."""
        return _freezes(self.steps)

    def prepare(
        self, model: Model, context: Context, coding: Coding, validation_data: Dataset
    ) -> Callable[[list[Any]], Outcome]:
        """Returns a function that applies all steps to a copy, see `run_steps`.

        `model` is compiled like the copy. The function raises `ModelError` if training
        produced NaN or infinite weights.

        Raises:
            ConfigError: If the loss is not comparable, see `check_metric`.
        """
        del coding, validation_data
        if self._max_drop is not None:
            check_metric(model)
        ready = [
            prepare_technique(step, replace(context, earlier=self.steps[:number]))
            for number, step in enumerate(self.steps)
        ]
        return partial(self._run, ready, context)

    def _run(
        self, ready: list[Technique], context: Context, copies: list[Any]
    ) -> Outcome:
        original = context.original
        model, changes = run_steps(original, ready, context, copies)
        if context.data is None:
            warn_if_stale(batch_norm.batch_norms(model), ready, changes)
        if context.epochs or any(step.trains for step in ready):
            check_finite(model, original)
        return Outcome(model, self.steps, changes)

    @property
    def figures(self) -> tuple[str, ...]:
        """Names of the figures that `judge` needs."""
        return () if self._max_drop is None else (METRICS,)

    def judge(self, result: Any) -> None:
        """Raises `TargetError` if the metric dropped by more than `max_drop`."""
        check_drop(result.report, self._max_drop, is_trainable=self._is_trainable)


def _freezes(steps: Sequence[Technique]) -> bool:
    return all(step.freezes for step in steps)


def run_steps(
    original: Model,
    steps: Sequence[Technique],
    context: Context,
    copies: list[Any] | None = None,
) -> tuple[Any, list[WeightChange]]:
    """Applies steps to a copy of `original` and returns the result and its changes.

    Each step changes the result of the previous step. The result is compiled like the
    copy. A copy in `copies` is used and removed, so that it is freed if a step returns
    another model.
    """
    context = replace(
        context, original=original, owned=True, preserve=preserve_technique
    )
    if copies:
        model = copies.pop()
    else:
        stage("copying the model")
        model = clone(original, shares=_freezes(steps))
    compile_alike, changes = compiler_of(model), []
    for number, step in enumerate(steps, start=1):
        context = replace(context, earlier=tuple(steps[: number - 1]))
        with seeded_at(context, number):
            # Only training and evaluation need a compiled model.
            if context.data is not None and number > 1:
                compile_alike(model)
            stage(step.name)
            model, of_step = apply_technique(step, model, context)
            if context.epochs and step.trains_on:
                fine_tune(model, step, context)
            changes += of_step
            if _leaves_stale(steps[number - 1 :], of_step, context):
                stage("gathering statistics")
                changes += batch_norm.reestimate_if_better(
                    model,
                    context.data,
                    _loss(model, original),
                    context.fit.get("batch_size") or batch_norm.BATCH_SIZE,
                )
    part_from(model, original)
    # The optimizer slots belong to the old weights.
    compile_alike(model)
    return model, changes


def _leaves_stale(
    steps: Sequence[Technique], changes: list[WeightChange], context: Context
) -> bool:
    """Returns whether BatchNormalization statistics are outdated and data is available.

    They are outdated after training, and after a step that removes or moves weights.
    """
    step, following = steps[0], steps[1:2]
    trains = step.trains or (step.trains_on and context.epochs > 0)
    has_removed = step.trains_on and any(change.changed for change in changes)
    by_hand = any(other.name == batch_norm.NAME for other in following)
    return context.data is not None and (trains or has_removed) and not by_hand


def _loss(model: Model, original: Model) -> Callable[[Any, Any, Any], float]:

    def loss(x: Tensor, y: Tensor, weight: Any) -> float:
        with current().inference():
            outputs = model(x, training=False)
            if y is not None and model.compiled and model.loss is not None:
                return batch_norm.own_loss(model, (x, y, weight), outputs)
            with unchanged_state(original):
                targets = original(x, training=False)
            pairs = zip(
                keras.tree.flatten(outputs), keras.tree.flatten(targets), strict=True
            )
            return sum(
                float(np.square(to_numpy(a).astype("f8") - to_numpy(b)).mean())
                for a, b in pairs
            )

    return loss


def warn_if_stale(
    norms: list[Any], steps: list[Technique], changes: list[WeightChange]
) -> None:
    """Warns if BatchNormalization statistics are older than the weights."""
    moving = {step.name for step in steps if step.trains_on}
    stale = [norm for norm in norms if norm.trainable]
    if stale and any(c.changed and c.technique in moving for c in changes):
        warnings.warn(
            f"The statistics of {len(stale)} BatchNormalization layers are from the "
            "model before its weights were removed or changed, which can reduce "
            "accuracy. Next: give samples as data= (--data on the command line), or "
            "add km.ReestimateBatchNorm().",
            KerasMemWarning,
            stacklevel=4,
        )


def _check_order(steps: tuple[Technique, ...]) -> None:
    last_freezing = None
    for place, step in enumerate(steps):
        names = [s.name for s in steps[:place] if s.name in step.undoes]
        if names:
            raise ConfigError(
                f"The step {step.name!r} would undo {names[0]!r}. Received: "
                f"steps={[step.name for step in steps]}. Next: put {step.name!r} first."
            )
        last_freezing = step if step.freezes else last_freezing
        if step.trains and last_freezing is not None:
            raise ConfigError(
                f"The step {step.name!r} trains weights, but {last_freezing.name!r} "
                f"makes them untrainable. Received: steps="
                f"{[step.name for step in steps]}. Next: put {step.name!r} before it."
            )
