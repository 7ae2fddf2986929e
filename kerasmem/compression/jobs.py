"""Which compressions go from file to file, and in which of two ways.

In pieces: what a step does to a weight takes a few looks at some entries of it. Layer
by layer: the model is run on samples, and each layer is lent its weights for that.
"""

import warnings
import zipfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil

from kerasmem.checks import OneOf
from kerasmem.compression.cluster import Cluster
from kerasmem.compression.prune import Prune
from kerasmem.compression.prune import apply as prune
from kerasmem.compression.quantize import Quantize
from kerasmem.compression.quantize import in_blocks as quantize
from kerasmem.compression.technique import Technique
from kerasmem.errors import ConfigError, KerasMemWarning
from kerasmem.files.archive import is_weights_alone, opened_weights, stored_bytes
from kerasmem.files.datasets import datasets
from kerasmem.files.described import can_be_described
from kerasmem.files.preset import is_preset, weights_of

_SHARE = 1 / 6
"""Of the memory there is: with more weights than that a model may not fit."""


_IN_PIECES: Mapping[type[Technique], Callable[[Any], str | None]] = {
    Prune: prune.why_not,
    Cluster: lambda _: None,
    Quantize: quantize.why_not,
}
"""What returns why a config needs more than pieces of weights, None if it does not."""


@dataclass(frozen=True)
class Job:
    """What is to be made of a file.

    Args:
        path: the file, or the folder of a preset.
        steps: the techniques.
        output: where to; ends in `.keras`, or is a new folder for a preset.
        runs: whether the model is run on samples, layer by layer.
    """

    path: Path
    steps: tuple[Technique, ...]
    output: Path
    runs: bool = False


def job_by_file(
    low_memory: bool | None,  # noqa: FBT001 - three values
    model_or_path: Any,
    output: Any,
    steps: Sequence[Technique] | None,
    asks: Mapping[str, Any],
) -> Job | None:
    """Return what is to go from file to file, None if a model is held in memory.

    Args:
        low_memory: what the caller says: True, False, or None for what suits.
        model_or_path: what it gives as the model.
        output: the file to write, None for none.
        steps: the techniques; None for a search.
        asks: arguments that take a model in memory, those that are not given None.

    Raises:
        ConfigError: if it should and cannot.
    """
    OneOf((None, True, False)).check("compress", "low_memory", low_memory)
    if low_memory is False or (low_memory is None and output is None):
        return None
    asked = [name for name, value in asks.items() if value is not None]
    runs = bool(asked) or any(_IN_PIECES.get(type(s), _no)(s) for s in steps or ())
    reason = _why_not(model_or_path, output, steps, asked)
    if runs and reason is None and is_preset(model_or_path):
        reason = "samples go into the task of a preset, not into its backbone"
    if low_memory and reason is not None:
        raise ConfigError(
            f"With low_memory=True no model is held in memory, and {reason}. Next: "
            "leave low_memory out (--low-memory on the command line)."
        )
    if reason is not None:
        _warn_if_large(model_or_path, reason)
        return None
    if not (low_memory or is_preset(model_or_path) or _is_large(Path(model_or_path))):
        return None
    output = Path(output or "").absolute()
    return Job(Path(model_or_path), tuple(steps or ()), output, runs)


_SAMPLES = ("data", "validation_data", "max_drop", "loss", "metrics", "--data")
"""What a model is run for, layer by layer."""


def _why_not(
    path: Any, output: Any, steps: Sequence[Technique] | None, asked: Sequence[str]
) -> str | None:
    """Return why a compression cannot go from file to file, None if it can."""
    others = [name for name in asked if name not in _SAMPLES]
    if others:
        return f"{others[0]} takes one"
    if not isinstance(path, str | Path):
        return "there is one already: give the path of its file"
    if output is None:
        return "there is no file to write: give output="
    if steps is None:
        return "a search tries many"
    for step in steps:
        reason = _IN_PIECES.get(type(step), _no)(step)
        if isinstance(step, Quantize):  # it looks at a layer after the other
            reason = "it rounds on samples" if step.takes_samples else None
        if reason is not None:
            return f"the step {step.name!r} cannot go piece by piece: {reason}"
    return _why_not_of(Path(path), Path(output))


def _no(_: Any) -> str:
    return "it takes the whole model"


def _warn_if_large(path: Any, reason: str) -> None:
    if isinstance(path, str | Path) and _is_large(Path(path)):
        warnings.warn(
            f"The model in {str(path)!r} is held in memory as a whole, though its "
            f"weights are large against the memory there is: {reason}.",
            KerasMemWarning,
            stacklevel=4,
        )


def _why_not_of(path: Path, output: Path) -> str | None:
    if is_preset(path):
        if output.suffix == ".keras":
            return "a preset becomes a preset: give a new folder as the output"
        path = weights_of(path)
    is_described = is_weights_alone(path) or can_be_described(path)
    if path.exists() and not is_described:
        return f"{str(path)!r} is no .keras file of Keras 3"
    return None


def _is_large(path: Path) -> bool:
    """Return whether the weights of a file are large against the memory there is."""
    most = _SHARE * psutil.virtual_memory().available
    if not path.is_file() or path.suffix not in (".keras", ".h5", ".json"):
        return False
    if stored_bytes(path) > most or not zipfile.is_zipfile(path):
        return stored_bytes(path) > most
    with opened_weights(path) as weights:
        found = [] if weights is None else datasets(weights)
    return sum(each.nbytes for each in found) > most
