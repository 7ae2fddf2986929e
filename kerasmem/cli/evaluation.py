"""Checks a model and its data before any work."""

import itertools
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import keras
import numpy as np

from kerasmem.cli.command import say
from kerasmem.errors import ConfigError, DataError, as_received
from kerasmem.files.contents import file_size
from kerasmem.files.data import (
    check_data,
    check_labels,
    fit_arguments,
    hold_out,
    is_array_data,
    needed_batch,
    outputs_on,
    sample_inputs,
)
from kerasmem.files.data.forms import first_samples
from kerasmem.graph.clone import compile_settings
from kerasmem.graph.from_config import compile_with
from kerasmem.graph.layers import has_own_step
from kerasmem.graph.outputs import as_loss, near_name, without_preprocessor
from kerasmem.records import ModelFigures
from kerasmem.types import Dataset, Model, Tensors
from kerasmem.units import format_bytes


def compile_for(model: Model, loss: str | None, metrics: Sequence[str]) -> None:
    """Compile `model` with the loss and metrics of the command line, if any.

    Raises:
        ConfigError: If a name is unknown to Keras, or a metric has no loss.
    """
    loss_object = check_names(loss, metrics)
    if not loss and not metrics:
        return
    if not loss and not model.compiled:
        raise ConfigError(
            "The model was loaded without a loss. Received: --metric without --loss. "
            "Next: add --loss NAME."
        )
    settings = compile_settings(model) or {}
    settings["optimizer"] = getattr(model, "optimizer", None) or "adam"
    settings["loss"] = loss_object or model.loss
    if metrics:
        settings["metrics"] = list(metrics)
    compile_with(model, settings)


def check_names(loss: str | None, metrics: Sequence[str]) -> Any:
    """Return the loss for `compile`, after checking all names."""
    loss_object = as_loss(loss)
    _check_names("loss", keras.losses, [loss] if loss and loss_object is loss else [])
    _check_names("metric", keras.metrics, metrics)
    return loss_object


def split_to_judge(train: Any) -> tuple[Any, Any]:
    """Return training and validation samples, and print how the data was split."""
    if is_array_data(train):
        say("The data has no test split: the last tenth is used for validation.")
        return hold_out(train)
    say("The data has no test split: the training data is used for validation.")
    return train, train


def has_labels(data: Dataset) -> bool:
    """Return whether the samples have labels."""
    return first_samples(data).get("y") is not None


def check_judging(
    model: Model, data: Dataset, batch_size: int, name: str = "model"
) -> None:
    """Raise an error unless the model's loss and metrics can be computed on the data.

    Only an evaluation of some samples can check this. The number of samples differs
    from the length of every axis, so that labels are not broadcast by chance. `name`
    identifies the model in the message about a missing loss.

    Raises:
        ConfigError: If the model has no loss.
        DataError: If the samples or the labels do not fit, or there are no labels.
    """
    check_data(model, data)
    size = needed_batch(model, data, batch_size)
    outputs = outputs_on(model, sample_inputs(data, size or 1))
    parts = {k: part for k, part in first_samples(data).items() if part is not None}
    if "y" not in parts and not has_own_step(model, "test_step"):
        raise DataError(
            "The data has no labels, which an evaluation needs. Next: add the array y."
        )
    if not model.compiled:
        raise ConfigError(
            f"The {name} was loaded without a loss. Next: pass --loss, and --metric "
            "for metrics."
        )
    for labels in keras.tree.flatten(parts.get("y")):
        if isinstance(labels, np.ndarray) and labels.dtype.kind in "SUO":
            raise DataError(
                "Expected numeric labels. Received: y with "
                f"{as_received(labels.flat[0])}. Next: number the classes from 0, as "
                "in np.unique(y, return_inverse=True)[1]."
            )
    check_labels(model, tuple(parts.values()), outputs)
    count = size or _odd_count(parts, outputs)
    few = keras.tree.map_structure(
        lambda array: None if array is None else array[:count], tuple(parts.values())
    )
    try:
        with without_preprocessor([model]):  # raw texts are already rejected
            model.evaluate(**fit_arguments(few, count), verbose=0)
    except Exception as error:
        reason = " ".join(str(error).split())[:300]
        part = "labels" if "y" in parts else "samples, without labels,"
        raise DataError(
            f"The {part} do not fit the model and its loss: {type(error).__name__}: "
            f"{reason}"
        ) from error


def _odd_count(parts: dict[str, Any], outputs: Tensors) -> int:
    arrays = keras.tree.flatten([parts.get("y"), outputs])
    lengths = {n for array in arrays for n in tuple(np.shape(array))[1:]}
    return next(n for n in itertools.count(2) if n not in lengths)


_SHORT_METRICS = ("acc", "ce", "crossentropy")
"""Names that only `compile` knows."""


def _check_names(kind: str, module: Any, names: Sequence[str]) -> None:
    for name in names:
        if kind == "metric" and name in _SHORT_METRICS:
            continue
        try:
            module.get(name)
        except ValueError as error:
            raise ConfigError(
                f"Unknown Keras {kind}. Received: --{kind} {name}."
                f"{near_name(name, module)} Next: see keras.io, or --import the module "
                "that registers it."
            ) from error


def of_its_file(figures: ModelFigures, path: str) -> ModelFigures:
    """Return the figures with the size of the input file."""
    return replace(figures, **file_size(path)._asdict())


def file_sentence(name: str, file_bytes: int | None, optimizer_file_bytes: int) -> str:
    """Return a sentence on the size of an input file and its optimizer state."""
    if file_bytes is None:
        return ""
    state = f"{format_bytes(optimizer_file_bytes)} of it" * bool(optimizer_file_bytes)
    return f"{name}: {format_bytes(file_bytes)}, {state or 'no'} optimizer state."
