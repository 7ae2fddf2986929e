"""Which weights the regular expressions mean that a technique was given.

A regular expression means a weight if the weight's path holds it (`"dense_1/kernel"`,
`"block3/"`), or if it is the name of the class of a layer around the weight, as a whole
(`"Embedding"`, `"Conv.D"`); a subclass counts as what it is a subclass of.
"""

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import keras

from kerasmem.errors import ConfigError, did_you_mean
from kerasmem.graph.layers import Weight


def check_regular_expression(technique: str, field: str, pattern: Any) -> None:
    """Raise an error if `pattern` is no regular expression.

    Args:
        technique: class name of the technique, for the text of the error.
        field: the argument that it came in.
        pattern: what was given.

    Raises:
        ConfigError: if it is none.
    """
    try:
        re.compile(pattern)
    except (re.error, TypeError) as error:
        raise ConfigError(
            f"The {field} of {technique} holds regular expressions. "
            f"Received: {pattern!r}, which is none: {error}."
        ) from error


def regular_expressions(technique: str, field: str, given: Any) -> tuple[str, ...]:
    """Return one or several regular expressions as a tuple.

    Args:
        technique: class name of the technique, for the text of the error.
        field: the argument that they came in.
        given: what was given.

    Raises:
        ConfigError: if one is none.
    """
    if not isinstance(given, Iterable) or isinstance(given, Mapping | bytes):
        raise ConfigError(
            f"The {field} of {technique} is a list of regular expressions. "
            f"Received: {field}={given!r}."
        )
    patterns = (given,) if isinstance(given, str) else tuple(given)
    for pattern in patterns:
        check_regular_expression(technique, field, pattern)
    return patterns


def means(patterns: Iterable[str], weight: Weight) -> bool:
    """Return True if one of the regular expressions means the weight."""
    return any(_means(pattern, weight) for pattern in patterns)


def check_all_mean_one(
    model: Any, everything: Sequence[Weight], by_field: Mapping[str, Iterable[str]]
) -> None:
    """Raise an error if a regular expression means no weight at all.

    Args:
        model: the model, for the text of the error.
        everything: all of its weights.
        by_field: regular expressions by the argument that they came in.

    Raises:
        ConfigError: if one means none.
    """
    for field, patterns in by_field.items():
        for pattern in patterns:
            if not any(_means(pattern, weight) for weight in everything):
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


def _means(pattern: str, weight: Weight) -> bool:
    if re.search(pattern, weight.path):
        return True
    classes = {*type(weight.owner).__mro__, *type(weight.block).__mro__}
    layers = (c for c in classes if issubclass(c, keras.layers.Layer))
    names = (cls.__name__ for cls in layers if cls is not keras.layers.Layer)
    return any(re.fullmatch(pattern, name) for name in names)
