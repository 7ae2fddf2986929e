"""Table of techniques, recipes and presets."""

import json
import reprlib
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import yaml

from kerasmem.compression.channels import PruneChannels
from kerasmem.compression.channels.apply import prune_in_rounds
from kerasmem.compression.cluster import Cluster
from kerasmem.compression.cluster.apply import cluster_weights
from kerasmem.compression.cluster.training import preserve_clusters
from kerasmem.compression.distill import Distill, train_step, with_teacher
from kerasmem.compression.factorize import Factorize
from kerasmem.compression.factorize.apply import factorize
from kerasmem.compression.fields import from_tagged
from kerasmem.compression.prune import Prune
from kerasmem.compression.prune.apply import prune_weights
from kerasmem.compression.prune.masks import preserve_zeros
from kerasmem.compression.quantize import (
    Equalize,
    FoldBatchNorm,
    Quantize,
    ReestimateBatchNorm,
)
from kerasmem.compression.quantize.config import GROUP_SIZE, SCHEMES
from kerasmem.compression.quantize.schemes import (
    check_ready,
    equalize_channels,
    fold,
    quantize,
    reestimate_statistics,
)
from kerasmem.compression.technique import Context, Technique, preserve_nothing
from kerasmem.errors import ConfigError, InputError, did_you_mean
from kerasmem.files.save import Coding
from kerasmem.graph.clone import clone
from kerasmem.records import WeightChange
from kerasmem.records.plain import MOST_BYTES, check_depth, read_json
from kerasmem.records.regular import read_regular
from kerasmem.types import Model


@dataclass(frozen=True)
class Implementation:
    """Implementation of a technique.

    Args:
        config: Class of the config.
        apply: Function of a model, the config and a context. Returns the new model and
            a list with one `WeightChange` per weight.
        preserve: Function of the config, the model and the trainer. Returns a scope.
        ready: Function of the config and a context. Returns the config to apply.
        in_place: Whether `apply` changes its input model, which then must be a copy.
    """

    config: type[Technique]
    apply: Callable[[Any, Any, Context], tuple[Any, list[WeightChange]]]
    preserve: Callable[[Any, Any, Any], AbstractContextManager[None]] = preserve_nothing
    ready: Callable[[Any, Context], Any] = lambda config, _: config
    in_place: bool = True


_TABLE = (
    Implementation(Prune, prune_weights, preserve_zeros),
    Implementation(PruneChannels, prune_in_rounds, in_place=False),
    Implementation(FoldBatchNorm, fold, in_place=False),
    Implementation(Equalize, equalize_channels),
    Implementation(ReestimateBatchNorm, reestimate_statistics),
    Implementation(Quantize, quantize, ready=check_ready, in_place=False),
    Implementation(Factorize, factorize),
    Implementation(Cluster, cluster_weights, preserve_clusters),
    Implementation(Distill, train_step, ready=with_teacher),
)

TECHNIQUES: dict[str, type[Technique]] = {row.config.name: row.config for row in _TABLE}


def apply_technique(
    technique: Technique, model: Model, context: Context | None = None
) -> tuple[Any, list[WeightChange]]:
    """Applies a technique; returns the new model and one `WeightChange` per weight.

    The input model is not changed unless `context.owned` is `True`.

    Raises:
        ConfigError: If the context lacks a requirement of the technique, such as data.
        ModelError: If the technique has nothing to change.
    """
    context = replace(context or Context(), preserve=preserve_technique)
    row = _implementation_of(technique)
    if row.in_place and not context.owned:
        model = clone(model)
    return row.apply(model, technique, context)


def prepare_technique(technique: Technique, context: Context) -> Technique:
    """Loads the requirements of a technique, such as a teacher from a file.

    Returns the technique itself, or a copy that holds the loaded objects.

    Raises:
        InputError: If the context lacks a requirement, or a file cannot be loaded.
    """
    return _implementation_of(technique).ready(technique, context)


def preserve_technique(
    technique: Technique, model: Model, trainer: Model
) -> AbstractContextManager[None]:
    """Returns a scope in which training preserves the effect of a technique.

    `trainer` is the model whose `fit` is called: `model` or a model that wraps it.
    """
    return _implementation_of(technique).preserve(technique, model, trainer)


def _implementation_of(technique: Technique) -> Implementation:
    return next(row for row in _TABLE if isinstance(technique, row.config))


def from_json(config: dict[str, Any]) -> Technique:
    """Returns the technique that `Technique.to_json` serialized.

    Raises:
        ConfigError: If the technique or one of its arguments is unknown.

    Example:
        >>> from_json({"technique": "quantize", "scheme": "int8"}).scheme
        'int8'
    """
    arguments = dict(config)
    if arguments.get("technique") == Quantize.name and _has_no_groups(arguments):
        del arguments["group_size"]
    return from_tagged(TECHNIQUES, arguments, "technique")


def _has_no_groups(arguments: dict[str, Any]) -> bool:
    """Returns whether a recipe of an earlier version has the unused group size."""
    is_unused = arguments.get("granularity") in ("channel", "tensor")
    return is_unused and arguments.get("group_size") == GROUP_SIZE


_MOST_BYTES, _MOST_STEPS = 1 << 18, 1000
"""Limits: bytes of a YAML file, which is slow to parse, and steps of a recipe."""


class _PlainLoader(yaml.SafeLoader):
    """Reads YAML without aliases, which could expand a short file to any size."""

    def compose_node(self, parent: Any, index: Any) -> Any:
        if self.check_event(yaml.AliasEvent):
            raise yaml.YAMLError("aliases are not supported; write out their content")
        return super().compose_node(parent, index)


def _read_yaml(content: bytes) -> Any:
    try:
        value = yaml.load(content, _PlainLoader)
        check_depth(value)
        json.dumps(value)  # which also raises for an integer of too many digits
    except (yaml.YAMLError, ArithmeticError, *_UNREADABLE) as error:
        reason = " ".join(str(error).split())
        raise InputError(f"It cannot be read: {reason}.") from error
    return value


_UNREADABLE = (RecursionError, MemoryError, ValueError, TypeError)


_READERS = {
    ".json": (read_json, MOST_BYTES),
    ".yaml": (_read_yaml, _MOST_BYTES),
    ".yml": (_read_yaml, _MOST_BYTES),
}


def as_steps(steps: Any) -> tuple[Technique, ...]:
    """Returns `steps` as a tuple of techniques.

    `steps` is a technique, a dict from `Technique.to_json`, a list of these, or the
    path of a recipe.

    Raises:
        ConfigError: If `steps` is empty or has another type.
    """
    if isinstance(steps, (str, Path)):
        return read_recipe(steps)
    items = [steps] if isinstance(steps, (Technique, dict)) else steps
    is_list = isinstance(items, Sequence) and len(items) > 0
    if not is_list or not all(isinstance(step, (Technique, dict)) for step in items):
        raise ConfigError(
            "Expected steps of compress: one or more techniques, such as [Prune(0.8), "
            "Quantize('int8')], the path of a recipe, or the name of a preset. "
            f"Received: steps={steps!r}.{_meant(items) if is_list else ''} Next: "
            "for a search, give target or max_drop instead."
        )
    return tuple(s if isinstance(s, Technique) else from_json(s) for s in items)


def _meant(steps: Any) -> str:
    names = [step for step in steps if isinstance(step, str) and step in SCHEMES]
    return f" Did you mean km.Quantize({names[0]!r})?" if names else ""


def read_recipe(path: str | Path) -> tuple[Technique, ...]:
    """Reads a recipe: a JSON or YAML file with a list of steps.

    Each step has the name of a `technique` and its arguments. The list can also be the
    value of the key `steps`. Loading a recipe executes no code.

    Raises:
        ConfigError: If the file is missing or invalid. The message contains the number
            of the invalid step.

    Example:
        A file `small.yaml`:

            - {technique: prune, sparsity: 0.8}
            - {technique: distill, epochs: 3}
            - {technique: quantize, scheme: int8}
    """
    content = _content(Path(path))
    if isinstance(content, dict) and set(content) == {"steps"}:
        content = content["steps"]
    if not isinstance(content, Sequence) or isinstance(content, str) or not content:
        raise ConfigError(
            "Expected a list of steps in a recipe, such as "
            "{technique: prune, sparsity: 0.8}. "
            f"Received: {str(path)!r} with {reprlib.repr(content)}."
        )
    if len(content) > _MOST_STEPS:
        raise ConfigError(
            f"A recipe has at most {_MOST_STEPS} steps. Received: {str(path)!r} with "
            f"{len(content)}."
        )
    return tuple(_step(path, number, step) for number, step in enumerate(content, 1))


def _content(path: Path) -> Any:
    if path.suffix.lower() not in _READERS:
        raise ConfigError(
            f"Expected a recipe file that ends in {', '.join(_READERS)}. "
            f"Received: {str(path)!r}."
        )
    read, most_bytes = _READERS[path.suffix.lower()]
    try:
        return read(read_regular(path, most_bytes, follow_link=True))
    except OSError as error:
        raise ConfigError(
            f"Cannot read the recipe {str(path)!r}: {error.strerror}."
        ) from error
    except InputError as error:
        raise ConfigError(
            f"The recipe {str(path)!r} is not valid {path.suffix[1:].upper()}: {error}"
        ) from error


def _step(path: Any, number: int, step: Any) -> Technique:
    if not isinstance(step, dict):
        raise ConfigError(
            f"Step {number} of the recipe {str(path)!r} is not a technique. "
            f"Received: {reprlib.repr(step)}."
        )
    try:
        return from_json(step)
    except ConfigError as error:
        raise ConfigError(
            f"Step {number} of the recipe {str(path)!r}: {error}"
        ) from error


@dataclass(frozen=True)
class Preset:
    """Steps with default coding and default epochs of fine-tuning."""

    steps: tuple[Technique, ...]
    coding: Coding = "deflate"
    epochs: int = 0


def _fewer_multiplications(ratio: float) -> PruneChannels:
    return PruneChannels(ratio, of="multiplications", scope="global")


PRESETS = {
    "size": Preset((Prune(0.8, scope="global"), Quantize("int8")), "entropy", 3),
    "latency": Preset((_fewer_multiplications(0.5),), epochs=3),
    "balanced": Preset((_fewer_multiplications(0.3), Quantize("int8")), epochs=3),
    "lossless": Preset((), "entropy"),
}


def as_preset(steps: Any) -> Preset:
    """Returns the preset of a name, or a preset of the steps that `as_steps` reads.

    Raises:
        ConfigError: If `steps` is neither.

    Example:
        >>> as_preset("lossless").coding
        'entropy'
    """
    if isinstance(steps, str) and steps in PRESETS:
        return PRESETS[steps]
    if isinstance(steps, str) and not Path(steps).suffix:
        hint = did_you_mean(steps, PRESETS)
        if steps.lower() in SCHEMES:
            hint = _meant([steps.lower()])
        elif steps in TECHNIQUES:
            hint = f" Next: steps=km.{TECHNIQUES[steps].__name__}(...)."
        raise ConfigError(
            f"Unknown preset {steps!r}.{hint} Presets are {', '.join(PRESETS)}; a "
            "recipe is a file that ends in .json, .yaml or .yml."
        )
    return Preset(as_steps(steps))
