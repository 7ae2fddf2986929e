"""Selects the weights of a technique and records the change of each weight.

A regular expression matches a weight if it occurs in the path of the weight, such as
`"dense_1/kernel"` or `"block3/"`. It can also match the full class name of a layer
around the weight, such as `"Embedding"` or `"Conv.D"`. Base classes count too.
"""

import math
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

import keras
import numpy as np

from kerasmem.errors import ConfigError, ModelError, did_you_mean
from kerasmem.graph.kernels import is_depthwise, is_kernel
from kerasmem.graph.layers import Weight
from kerasmem.records import WeightChange

NO_KERNEL = "is not a kernel or embedding table"
_NOTABLE = 0.01
"""Fraction of the bytes of all weights above which an unchanged weight is notable."""

_PIECE = 1 << 18
"""Number of entries to compare at a time."""


def account(
    weight: Weight,
    technique: str,
    detail: str,
    *,
    changed: bool,
    after_bytes: int | None = None,
    sqnr_db: float | None = None,
) -> WeightChange:
    """Returns the record of a weight.

    `detail` describes the change, or the reason why there is none. `after_bytes`
    defaults to the bytes before the change.
    """
    return WeightChange(
        layer=weight.block.name,
        weight=weight.path,
        technique=technique,
        changed=changed,
        detail=detail,
        before_bytes=weight.nbytes,
        after_bytes=weight.nbytes if after_bytes is None else after_bytes,
        sqnr_db=sqnr_db,
    )


def notable_first(changes: Sequence[WeightChange]) -> tuple[WeightChange, ...]:
    """Sorts the changes for a reader.

    Unchanged weights with at least 1 % of all bytes come first, by size. Then come the
    changed weights, then biases, statistics and the rest.
    """
    changed_weights = {change.weight for change in changes if change.changed}
    sizes = {change.weight: change.before_bytes for change in changes}
    least = _NOTABLE * sum(sizes.values())

    def order(change: WeightChange) -> tuple[int, int]:
        size = change.before_bytes
        if change.weight in changed_weights:
            return 1, 0
        return (0, -size) if size >= least and change.detail != NO_KERNEL else (2, 0)

    return tuple(sorted(changes, key=order))


def sqnr_db(values: np.ndarray, rounded: np.ndarray) -> float | None:
    """Returns the signal-to-quantization-noise ratio in dB, or `None` without noise.

    Example:
        >>> sqnr_db(np.array([10.0, 0.0]), np.array([9.0, 0.0]))
        20.0
    """
    return decibels(*powers(values, rounded))


def powers(values: np.ndarray, rounded: np.ndarray) -> tuple[float, float]:
    """Returns the sums of squares of the values and of their rounding errors."""
    signal = noise = 0.0
    flat, other = values.reshape(-1), rounded.reshape(-1)
    for start in range(0, flat.size, _PIECE):
        exact = flat[start : start + _PIECE].astype(np.float32, copy=False)
        difference = exact - other[start : start + _PIECE].astype(
            np.float32, copy=False
        )
        signal, noise = signal + _power(exact), noise + _power(difference)
    return signal, noise


def _power(values: np.ndarray) -> float:
    with np.errstate(over="ignore"):
        power = float(values @ values)
    if math.isfinite(power):
        return power
    return float(np.square(values, dtype=np.float64).sum())


def decibels(signal: float, noise: float) -> float | None:
    """Returns the ratio of two sums of squares in dB, or `None` if one is zero."""
    return 10 * float(np.log10(signal / noise)) if noise and signal else None


def matches(patterns: Iterable[str], weight: Weight) -> bool:
    """Returns whether a weight matches one of the regular expressions."""
    return any(_matches(pattern, weight) for pattern in patterns)


def check_every_pattern_matches(
    name: str, all_weights: Sequence[Weight], by_field: Mapping[str, Iterable[str]]
) -> None:
    """Raises `ConfigError` if a regular expression matches no weight.

    `by_field` contains the regular expressions by argument name.
    """
    for field, patterns in by_field.items():
        for pattern in patterns:
            if not any(_matches(pattern, weight) for weight in all_weights):
                parts = sorted(
                    {n for weight in all_weights for n in _parts(weight.path)}
                )
                near = did_you_mean(pattern, parts, most=3, cutoff=0.5)
                raise ConfigError(
                    f"No weight path or layer class of the model {name!r} matches."
                    f"{near} Received: {field}={pattern!r}."
                )


def select(
    name: str,
    all_weights: Sequence[Weight],
    by_field: Mapping[str, Iterable[str]],
    why_not: Callable[[Weight], str | None],
    nothing: str,
) -> tuple[list[Weight], list[tuple[Weight, str]]]:
    """Splits weights into selected ones and others with the reason.

    `why_not` returns why a weight is not selected, or `None`. `nothing` ends the
    message if no weight is selected, and can contain `{count}`.

    Raises:
        ModelError: If no weight is selected.
        ConfigError: If a regular expression matches no weight.
    """
    check_every_pattern_matches(name, all_weights, by_field)
    reasons = [(weight, why_not(weight)) for weight in all_weights]
    selection = [weight for weight, reason in reasons if reason is None]
    if not selection:
        ending = nothing.format(count=len(all_weights))
        raise ModelError(f"The model {name!r} has nothing to {ending}")
    return selection, [(weight, why) for weight, why in reasons if why is not None]


def why_left_alone(
    weight: Weight, include: Iterable[str], exclude: Iterable[str]
) -> str | None:
    """Returns why a weight is not selected, or `None` if it is selected."""
    dtype = keras.backend.standardize_dtype(weight.variable.dtype)
    if not keras.backend.is_float_dtype(dtype):
        return f"is {dtype} already"
    if matches(exclude, weight):
        return "is excluded"
    if matches(include, weight):
        return None
    if not is_kernel(weight):
        return NO_KERNEL
    return (
        "is depthwise: few weights, each one matters" if is_depthwise(weight) else None
    )


def _parts(path: str) -> Iterator[str]:
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
