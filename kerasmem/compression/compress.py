"""The one verb: a model in, a smaller model and its report out."""

import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import keras

from kerasmem.backends.seeding import seeded
from kerasmem.compression.checkpoints import Checkpoints, key_of
from kerasmem.compression.judge import check_drop, check_max_drop
from kerasmem.compression.measure import figures, file_bytes, latencies
from kerasmem.compression.recipe import as_steps
from kerasmem.compression.result import CompressionResult
from kerasmem.compression.stages import Training, run_steps
from kerasmem.compression.technique import Technique, TrainingStep
from kerasmem.errors import ConfigError, DataError, KerasMemWarning
from kerasmem.files.data import check_data, fit_arguments, is_array_data, sample_count
from kerasmem.files.load import load_model
from kerasmem.files.save import Coding, check_coding
from kerasmem.graph.clone import clone, compile_as, compile_settings
from kerasmem.records import CompressionReport

BATCH_SIZE = 32

_NO_LOSS = "the model has no loss; give loss= (--loss on the command line)"


def compress(  # noqa: PLR0913 - the public entry point, see the design
    model_or_path: Any,
    steps: Technique | Sequence[Technique] | str | Path | None = None,
    *,
    data: Any = None,
    validation_data: Any = None,
    fine_tune_epochs: int = 0,
    target: dict[str, float] | None = None,
    max_drop: float | None = None,
    loss: Any = None,
    metrics: Any = None,
    custom_objects: dict[str, Any] | None = None,
    seed: int | None = None,
    batch_size: int = BATCH_SIZE,
    callbacks: Sequence[Any] | None = None,
    coding: Coding = "deflate",
    checkpoint_dir: str | Path | None = None,
) -> CompressionResult:
    """Return a smaller model, and what it costs and how well it does before and after.

    The techniques are applied in order to a copy; what is handed in is not touched.

    Args:
        model_or_path: a built `keras.Model`, or the path of a `.keras` or `.h5` file.
        steps: one technique or several, or the path of a recipe: a JSON or YAML file
            that lists them, see `kerasmem.compression.recipe`.
        data: samples to fine-tune on: `(x, y)`, `(x, y, sample_weight)`, a
            `tf.data.Dataset`, a `keras.utils.PyDataset`.
        validation_data: samples to judge by; without them no metric is measured.
        fine_tune_epochs: epochs of training on `data` after every technique that
            leaves the model trainable, with the model's own optimizer settings, loss
            and metrics; its optimizer starts anew for each technique. What a technique
            removed stays removed.
        target: budgets to search for; not in this version, give `steps`.
        max_drop: most that the first metric may get worse, as a difference (0.005 is
            half a point of accuracy); needs `validation_data`.
        loss: loss to use in place of the model's own.
        metrics: metrics to use in place of the model's own.
        custom_objects: the user's own layers and functions by name, for a path.
        seed: makes fine-tuning repeatable.
        batch_size: samples per batch, where `data` is not batched already.
        callbacks: Keras callbacks for the fine-tuning.
        coding: of the file, as for `km.save_model`: `"entropy"` is smaller, and Keras
            opens it after `import kerasmem`.
        checkpoint_dir: a folder that keeps the model after every technique: a run that
            was killed goes on there when it is called again with the same arguments.
            With a seed it ends with the same weights, where the training itself can be
            repeated: not with a dataset that shuffles by itself, or callbacks that
            remember earlier trainings.

    Raises:
        ConfigError: if the arguments do not fit together.
        DataError: if the data does not fit the model.
        ModelError: if a technique finds nothing to do.
        ModelFileError: if the file cannot be loaded.
        AccuracyDropError: if the metric drops by more than `max_drop`.
    """
    chosen = as_steps(steps)
    _check(chosen, data, fine_tune_epochs, target)
    check_max_drop(max_drop, validation_data)
    check_coding(coding)
    fit = {} if data is None else fit_arguments(data, batch_size)
    if fine_tune_epochs and is_array_data(data) and fit.get("y") is None:
        raise DataError("Fine-tuning needs labels: give data=(x, y).")
    fit |= {"callbacks": list(callbacks or ()), "verbose": 0}
    with seeded(seed):
        original = _open(model_or_path, custom_objects)
        _compile(original, loss, metrics)
        if fine_tune_epochs and not original.compiled:
            raise ConfigError(
                f"The model {original.name!r} has no loss, so it cannot be "
                "fine-tuned. Give loss= (--loss on the command line)."
            )
        for samples in (data, validation_data):
            if samples is not None:
                check_data(original, samples)
        ready = [_ready(step, original, data, custom_objects) for step in chosen]
        checkpoints = None
        if checkpoint_dir is not None:
            others = {"epochs": fine_tune_epochs, "batch_size": batch_size}
            key = key_of(original, ready, data, seed=seed, **others)
            checkpoints = Checkpoints(Path(checkpoint_dir), key)
        training = Training(data, fit, fine_tune_epochs, seed)
        result, changes = run_steps(original, ready, training, checkpoints)
        # Anew: the weights are others now, the slots of the old ones are in the way.
        compile_as(result, original)
        report = _report(
            original, result, chosen, (validation_data, batch_size), coding
        )
    check_drop(report, max_drop)
    return CompressionResult(result, report, tuple(changes), coding)


def _check(steps: tuple[Technique, ...], data: Any, epochs: int, target: Any) -> None:
    if target is not None:
        raise ConfigError(
            "Searching for a target is not in this version of kerasmem. Give the "
            f"techniques as steps instead. Received: target={target!r}."
        )
    if not isinstance(epochs, int) or isinstance(epochs, bool) or epochs < 0:
        raise ConfigError(
            "fine_tune_epochs is a whole number from 0. Received: "
            f"fine_tune_epochs={epochs!r}."
        )
    trains = [step.name for step in steps if isinstance(step, TrainingStep)]
    if trains and data is None:
        raise ConfigError(
            f"The step {trains[0]!r} learns from samples: give data=x or data=(x, y) "
            "(--data on the command line). Received: data=None."
        )
    if epochs and data is None:
        raise ConfigError(
            "Fine-tuning needs samples with labels: give data=(x, y). Received: "
            f"fine_tune_epochs={epochs}, data=None."
        )
    if epochs and not any(step.trains_on for step in steps):
        raise ConfigError(
            "None of the steps leaves the model trainable, so there is nothing to "
            f"fine-tune. Received: fine_tune_epochs={epochs}, steps="
            f"{[step.name for step in steps]}."
        )
    _check_order(steps)


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


def _open(model_or_path: Any, custom_objects: Any) -> Any:
    """Return a model of our own to work on."""
    if isinstance(model_or_path, keras.Model):
        return clone(model_or_path)
    if isinstance(model_or_path, str | Path):
        return load_model(model_or_path, custom_objects)
    raise ConfigError(
        "Expected a keras.Model or the path of a saved one. Received: "
        f"model_or_path={model_or_path!r}."
    )


def _compile(model: Any, loss: Any, metrics: Any) -> None:
    """Compile `model` anew, with a loss and metrics of the caller's if given."""
    settings = compile_settings(model) or {}
    if loss is not None:
        settings["loss"] = loss
    if metrics is not None:
        settings["metrics"] = metrics
    if settings.get("loss") is not None:
        model.compile(**{"optimizer": "adam", **settings})
    elif metrics is not None:
        raise ConfigError(
            f"The model {model.name!r} has no loss. Give loss= beside metrics=."
        )


def _ready(step: Technique, original: Any, data: Any, custom_objects: Any) -> Technique:
    """Return a step with all that it needs to train."""
    if isinstance(step, TrainingStep):
        return step.ready(original, data, custom_objects)
    return step


def _report(
    original: Any,
    result: Any,
    steps: tuple[Technique, ...],
    judge: tuple[Any, int],
    coding: Coding,
) -> CompressionReport:
    data, batch_size = judge
    before, after = latencies([original, result], data, batch_size)
    size = file_bytes(result, coding=coding)
    count = None if data is None else sample_count(data)
    at_first = figures(
        original, data, batch_size, before, file_bytes(original, stored=True)
    )
    if data is not None and not at_first.metrics:
        lacks = "validation_data has no labels" if original.compiled else _NO_LOSS
        warnings.warn(
            f"No metric was measured: {lacks}.", KerasMemWarning, stacklevel=3
        )
    return CompressionReport(
        before=at_first,
        after=figures(result, data, batch_size, after, size),
        steps=tuple(step.to_json() for step in steps),
        samples=count or 0,
    )
