"""A compression whose steps the caller names."""

import warnings
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from kerasmem.backends import current
from kerasmem.compression.batch_norm import batch_norms
from kerasmem.compression.checkpoints import Checkpoints, key_of
from kerasmem.compression.job import Done, Job
from kerasmem.compression.judge import check_drop, check_metric
from kerasmem.compression.presets import Preset, as_preset
from kerasmem.compression.stages import Training, run_steps
from kerasmem.compression.technique import Technique, TrainingStep
from kerasmem.errors import ConfigError, KerasMemWarning
from kerasmem.files.save import Coding
from kerasmem.graph.finite import check_finite
from kerasmem.records import WeightChange


@dataclass(frozen=True)
class Resuming:
    """What it takes to go on where a killed run ended.

    Args:
        folder: with the model after every step; None for none.
        batch_size: a run with another one is another run.
    """

    folder: str | Path | None
    batch_size: int


class GivenSteps(Job):
    """The steps, one after the other.

    Args:
        steps: techniques, a recipe or a preset.
        max_drop: most that the first metric may get worse; None for any.
        resuming: where the steps are kept.
        custom_objects: the user's own layers and functions by name.

    Raises:
        ConfigError: if there are no such steps.
    """

    def __init__(
        self,
        steps: Any,
        max_drop: float | None,
        resuming: Resuming,
        custom_objects: Any,
    ) -> None:
        preset: Preset = as_preset(steps)
        self.epochs, self.coding = preset.epochs, preset.coding
        self._steps = preset.steps
        self._max_drop = max_drop
        self._resuming = resuming
        self._custom_objects = custom_objects

    def check(self, data: Any, validation_data: Any, epochs: int) -> None:
        """Raise if a step lacks what it needs, or undoes an earlier one."""
        del validation_data
        names = [step.name for step in self._steps]
        trains = [step.name for step in self._steps if isinstance(step, TrainingStep)]
        if trains and data is None:
            raise ConfigError(
                f"The step {trains[0]!r} learns from samples: give data=x or "
                "data=(x, y) (--data on the command line). Received: data=None."
            )
        if epochs and data is None:
            raise ConfigError(
                "Fine-tuning needs samples with labels: give data=(x, y), or leave it "
                "out with fine_tune_epochs=0 (--data, --fine-tune-epochs 0 on the "
                "command line). Received: "
                f"fine_tune_epochs={epochs}, data=None."
            )
        if epochs and not any(step.trains_on for step in self._steps):
            raise ConfigError(
                "None of the steps leaves the model trainable, so there is nothing to "
                f"fine-tune. Received: fine_tune_epochs={epochs}, steps={names}."
            )
        _check_order(self._steps)

    def run(
        self, original: Any, training: Training, coding: Coding, validation_data: Any
    ) -> Done:
        """Return the model after the last step.

        Raises:
            ConfigError: if its metrics tell no drop.
            ModelError: if training left NaN or infinity in the model.
        """
        del coding, validation_data
        if self._max_drop is not None:
            check_metric(original)
        ready = [
            step.ready(original, training.data, self._custom_objects)
            if isinstance(step, TrainingStep)
            else step
            for step in self._steps
        ]
        checkpoints = self._checkpoints(original, ready, training)
        model, changes = run_steps(original, ready, training, checkpoints)
        if training.data is None:
            _warn_if_stale(model, ready, changes)
        if training.epochs or any(isinstance(step, TrainingStep) for step in ready):
            check_finite(model, original)
        return Done(model, self._steps, changes)

    def judge(self, result: Any) -> None:
        """Raise `AccuracyDropError` if the metric got worse by too much."""
        check_drop(result.report, self._max_drop)

    def _checkpoints(
        self, original: Any, steps: list[Technique], training: Training
    ) -> Checkpoints | None:
        if self._resuming.folder is None:
            return None
        _, processes = current().processes(original)
        if processes > 1:
            raise ConfigError(
                "Processes that train together keep no steps: each would remove what "
                "another one reads. Next: leave out checkpoint_dir. Received: "
                f"{processes} processes."
            )
        key = key_of(
            original,
            steps,
            training.data,
            seed=training.seed,
            epochs=training.epochs,
            batch_size=self._resuming.batch_size,
        )
        return Checkpoints(Path(self._resuming.folder), key)


def _warn_if_stale(
    model: Any, steps: list[Technique], changes: list[WeightChange]
) -> None:
    """Warn if weights went that statistics of BatchNormalization were gathered on."""
    moving = {step.name for step in steps if step.trains_on}
    stale = [norm for norm in batch_norms(model) if norm.trainable]
    if stale and any(c.changed and c.technique in moving for c in changes):
        warnings.warn(
            f"The statistics of {len(stale)} BatchNormalization layers are those of "
            "the model before its weights were removed or moved, with which it may do "
            "far worse than it could. Next: give samples as data= (--data on the "
            "command line), or gather them anew with km.ReestimateBatchNorm().",
            KerasMemWarning,
            stacklevel=4,
        )


def _check_order(steps: tuple[Technique, ...]) -> None:
    """Raise if a step undoes one before it, or trains weights that one has fixed."""
    fixed = None
    for place, step in enumerate(steps):
        undone = [s.name for s in steps[:place] if s.name in step.undoes]
        if undone:
            raise ConfigError(
                f"Nothing would be left of {undone[0]!r} after {step.name!r}. "
                f"Received: steps={[step.name for step in steps]}. Next: put "
                f"{step.name!r} first."
            )
        fixed = step if step.freezes else fixed
        if isinstance(step, TrainingStep) and fixed is not None:
            raise ConfigError(
                f"After {fixed.name!r} the weights are not trained any more, and "
                f"{step.name!r} trains them. Received: steps="
                f"{[step.name for step in steps]}. Next: put {step.name!r} before it."
            )
