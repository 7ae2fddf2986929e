"""Which weights match the regular expressions that a technique was given.

A weight matches a regular expression if the weight's path holds it (`"dense_1/kernel"`,
`"block3/"`), or if it is the name of the class of a layer around the weight, as a whole
(`"Embedding"`, `"Conv.D"`); a subclass counts as what it is a subclass of.
"""

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import keras

from kerasmem.errors import ConfigError, did_you_mean
from kerasmem.graph.layers import Weight


def matches(patterns: Iterable[str], weight: Weight) -> bool:
    """Return True if the weight matches one of the regular expressions."""
    return any(_matches(pattern, weight) for pattern in patterns)


def check_every_pattern_matches(
    model: Any, everything: Sequence[Weight], by_field: Mapping[str, Iterable[str]]
) -> None:
    """Raise an error if no weight at all matches a regular expression.

    Args:
        model: the model, for the text of the error.
        everything: all of its weights.
        by_field: regular expressions by the argument that they came in.

    Raises:
        ConfigError: if none matches one.
    """
    for field, patterns in by_field.items():
        for pattern in patterns:
            if not any(_matches(pattern, weight) for weight in everything):
                raise ConfigError(
                    f"No weight of the model {model.name!r} has a path that matches, "
                    f"or a layer of this class.{_nearest(pattern, everything)} "
                    f"Received: {field}={pattern!r}."
                )


def _nearest(pattern: str, everything: Sequence[Weight]) -> str:
    parts = {part for weight in everything for part in _parts(weight.path)}
    return did_you_mean(pattern, sorted(parts), most=3, cutoff=0.5)


def _parts(path: str) -> Iterator[str]:
    """Yield every run of names in a path, such as `"block/dense"`."""
    names = path.split("/")
    for end in range(1, len(names) + 1):
        for begin in range(end):
            yield "/".join(names[begin:end])


def _matches(pattern: str, weight: Weight) -> bool:
    if re.search(pattern, weight.path):
        return True
    classes = {*type(weight.owner).__mro__, *type(weight.block).__mro__}
    layers = (c for c in classes if issubclass(c, keras.layers.Layer))
    names = (cls.__name__ for cls in layers if cls is not keras.layers.Layer)
    return any(re.fullmatch(pattern, name) for name in names)
