"""Builds models with other constructor arguments, and pairs their weights.

The config of some models, such as KerasHub backbones and tasks, contains arguments
instead of layers: `intermediate_dim`, `num_layers`. Another value gives a model of the
same class with other shapes. The layers correspond in order. There can be fewer
repeated blocks.
"""

import json
import re
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import keras

from kerasmem.backends import current
from kerasmem.backends.lazy import lazy_variables
from kerasmem.errors import ModelError
from kerasmem.graph.clone import live_objects
from kerasmem.graph.from_config import (
    copy_saved_state,
    set_alike,
    without_first_values,
)
from kerasmem.graph.layers import (
    has_graph,
    lists_layers,
    own_variables,
    sublayers,
)
from kerasmem.types import Layer, Model

Place = tuple[str, ...]
"""Keys that lead to an argument in nested configs."""

Pair = tuple[Any, Any]
"""A layer or weight of a model, and the corresponding one of another model."""

_PREPROCESSOR = "preprocessor"


def is_made_of_arguments(model: Model) -> bool:
    """Returns whether the config of a model with a graph contains arguments."""
    return has_graph(model) and not lists_layers(model)


def arguments(model: Model) -> dict[Place, Any]:
    """Returns the arguments in the config of a model and of its nested models.

    The result is empty if the class has no config.
    """
    try:
        return dict(_leaves(_config(model), ()))
    except (NotImplementedError, TypeError):
        return {}


def _leaves(config: Mapping[str, Any], around: Place) -> Iterator[tuple[Place, Any]]:
    for name, value in config.items():
        if isinstance(value, dict):
            yield from _leaves(value, (*around, name))
        else:
            yield (*around, name), value


def _config(model: Model) -> dict[str, Any]:
    config = model.get_config()
    if config.get(_PREPROCESSOR) is not None:
        config = {**config, _PREPROCESSOR: None}
    return json.loads(json.dumps(config))


def shapes_with(model: Model, changes: Mapping[Place, Any]) -> Any:
    """Builds a model only to read its shapes, without weight memory where possible."""
    values = current().lazy_values()
    if values.why_not() is not None:
        with without_first_values():
            return _built(model, changes)
    with lazy_variables(values, described=True):
        return _built(model, changes)


def made_with(
    model: Model,
    changes: Mapping[Place, Any],
    values: Callable[[Sequence[Pair]], Iterable[tuple[Any, Any]]],
) -> tuple[Any, list[Pair]]:
    """Builds an uncompiled model of the same class with other arguments.

    Frozen layers stay frozen. Both models share the preprocessor. `values` maps pairs
    of old and new weights to pairs of new weights and values. Other weights are
    initialized. Also returns the pairs of weights.
    """
    with current().replicating(model), without_first_values():
        new_model = _built(model, changes)
        layers = layer_pairs(model, new_model)
        pairs = weight_pairs(layers)
        matched_ids = {id(new) for _, new in pairs}
        for weight in new_model.weights:
            if id(weight) not in matched_ids:
                raise _other_layers(model.name, "weights of layers", weight.path)
        preprocessor = getattr(model, _PREPROCESSOR, None)
        if preprocessor is not None:
            new_model.preprocessor = preprocessor
        copy_saved_state(model, new_model)
        for weight, value in values(pairs):
            weight.assign(value)
    set_alike([(new, old) for old, new in layers])
    return new_model, pairs


def _built(model: Model, changes: Mapping[Place, Any]) -> Any:
    config = _config(model)
    for (*around, name), value in changes.items():
        inner = config
        for key in around:
            inner = inner[key]
        inner[name] = value
    try:
        with (
            keras.saving.custom_object_scope(live_objects(model)),
            warnings.catch_warnings(),
        ):
            warnings.simplefilter("ignore")  # already shown for the original model
            return type(model).from_config(config)
    except (TypeError, ValueError, ArithmeticError, NotImplementedError) as error:
        settings = ", ".join(
            f"{place[-1]}={value!r}" for place, value in changes.items()
        )
        raise ModelError(
            f"Cannot build a {type(model).__name__!r} from the config of "
            f"{model.name!r} with {settings}. "
            f"Received: {' '.join(str(error).split())[:200]}."
        ) from error


def weight_pairs(layers: Sequence[Pair]) -> list[Pair]:
    """Returns the pairs of weights for pairs of layers, without seeds."""
    pairs: list[Pair] = []
    for old, new in layers:
        # Keras numbers variables without a name: variable, variable_1.
        names = [
            [re.sub(r"_\d+$", "", v.name) for v in own_variables(layer)]
            for layer in (old, new)
        ]
        if names[0] != names[1]:
            raise _other_layers(old.name, *map(str, names))
        pairs += zip(own_variables(old), own_variables(new), strict=True)
    return pairs


def layer_pairs(old: Any, new: Any) -> list[Pair]:
    """Returns pairs of corresponding layers of two models of the same class.

    If the new model has fewer repeated blocks, these are paired with evenly spaced old
    blocks, if possible with equal configs.
    """
    pairs: dict[int, Pair] = {}
    _add_pairs(old, new, pairs)
    return list(pairs.values())


def _add_pairs(old: Any, new: Any, pairs: dict[int, Pair]) -> None:
    if id(new) in pairs:
        return
    if type(old) is not type(new):
        raise _other_layers(old.name, type(old).__name__, type(new).__name__)
    pairs[id(new)] = (old, new)
    before, after = siblings(old), siblings(new)
    if before.keys() != after.keys():
        missing = [name for _, name in before.keys() ^ after.keys()]
        raise _other_layers(old.name, ", ".join(missing), "layers of other names")
    for kind, layers in after.items():
        for place, layer in zip(
            _corresponding(before[kind], layers), layers, strict=True
        ):
            _add_pairs(before[kind][place], layer, pairs)


def siblings(layer: Layer) -> dict[tuple[type, str], list[Any]]:
    """Returns the direct sublayers of a layer, grouped by class and name.

    Ignores numbers at the end of names, such as in `"decoder_block_3"`, and the name of
    the model as a prefix.
    """
    by_kind: dict[tuple[type, str], list[Any]] = {}
    for inner in _children(layer):
        stem = re.sub(r"_?\d+$", "", inner.name.removeprefix(f"{layer.name}_"))
        same = by_kind.setdefault((type(inner), stem), [])
        if inner.weights and not any(inner is other for other in same):
            same.append(inner)
    return {kind: layers for kind, layers in by_kind.items() if layers}


def _children(layer: Layer) -> list[Any]:
    # Private, as in `sublayers`.
    return list(layer._flatten_layers(include_self=False, recursive=False))


def _corresponding(before: Sequence[Any], after: Sequence[Any]) -> list[int]:
    many, few = len(before), len(after)
    if many < few:
        raise _other_layers(before[0].name, f"{many} of them", f"{few}")
    if many == few:
        return list(range(many))
    looks = [_looks(layer) for layer in before]
    places: list[int] = []
    for number, layer in enumerate(after):
        middle = (2 * number + 1) * many // (2 * few)
        remaining = range(places[-1] + 1 if places else 0, many - few + number + 1)
        alike = [n for n in remaining if looks[n] == _looks(layer)] or remaining
        places.append(min(alike, key=lambda n, m=middle: (abs(n - m), -n)))
    return places


def _looks(layer: Layer) -> str:
    """Returns a key that is equal for blocks with equal configs.

    Blocks can differ in details such as the attention window. The config of a block may
    omit these, so the key includes the inner layers.
    """
    looks = []
    for inner in sublayers(layer):
        try:
            config = {**inner.get_config(), "name": None}
        except (NotImplementedError, TypeError, AttributeError):
            config = {}
        looks.append([type(inner).__name__, config, len(own_variables(inner))])
    return json.dumps(looks, default=lambda value: type(value).__name__)


def _other_layers(name: str, old: str, new: str) -> ModelError:
    return ModelError(
        f"Cannot pair the weights of {name!r}, because the model has other layers with "
        f"the new arguments. Expected: {old}. Received: {new}. "
        "Next: remove channels and blocks before km.Quantize, km.Factorize and LoRA."
    )
