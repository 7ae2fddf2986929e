"""Telling a sustained rise from noise, and who holds what stays."""

import functools
import gc
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from types import CellType, FrameType, FunctionType, MemberDescriptorType, ModuleType
from typing import Any, NamedTuple

import keras
import numpy as np

from kerasmem.memory.census import held_by, is_own, untracked

WARM_UP = 2
"""Values at the beginning that are never looked at."""

WINDOWS = (8, 16, 32)
"""Numbers of values in which a rise is looked for."""

_RISE_PER_SCATTER = 8.0
_HELD_UP = 0.7
_LEAST_NET_RISE = 1 - 1 / _RISE_PER_SCATTER
"""Share of slope times epochs by which a steady rise ends above its begin."""


class Rise(NamedTuple):
    """A sustained rise: by how much per value, and the index of its first value."""

    slope: float
    since: int


def sustained_rise(
    values: Sequence[float], least: float, windows: Sequence[int] = WINDOWS
) -> Rise | None:
    """Return the rise that the latest values show, or None.

    The slope is the median of the slopes between any two values (Theil, "A
    rank-invariant method of linear and polynomial regression analysis", 1950; Sen,
    1968), which a few odd values do not move. A rise is sustained if it is at least
    `least` per value and eight times as high as the values scatter about it, if its
    second half is about as steep as the whole, and if it ends higher than anything
    before; so neither noise nor a step, a rise that wears off or a sawtooth whose
    teeth are shorter than the smallest window is one.

    Args:
        values: one value per epoch, the latest last.
        least: smallest slope of interest.
        windows: numbers of latest values to look at; the widest that shows a rise
            says since when.

    Example:
        >>> sustained_rise([0, 9, 9, 9, 9, 9, 9, 9, 9, 9], least=1)
        >>> sustained_rise([0, 9, 10, 11, 12, 13, 14, 15, 16, 17], least=1)
        Rise(slope=1.0, since=2)
    """
    for window in sorted(windows, reverse=True):
        first = len(values) - window
        if first < WARM_UP or values[-1] <= max(values[:-1]):
            continue
        if values[-1] - values[first] < _LEAST_NET_RISE * least * (window - 1):
            continue  # it cannot be, and that was cheap to see
        slope = _slope(values[first:])
        if slope >= least and _is_steady(values[first:], slope):
            return Rise(slope, first)
    return None


def _is_steady(values: Sequence[float], slope: float) -> bool:
    about = np.asarray(values, "float64") - slope * np.arange(len(values))
    scatter = float(np.ptp(about))
    is_clear = slope * (len(values) - 1) >= _RISE_PER_SCATTER * scatter
    return is_clear and _slope(values[len(values) // 2 :]) >= _HELD_UP * slope


@functools.cache
def _pairs(number: int) -> tuple[np.ndarray, np.ndarray]:
    return np.triu_indices(number, k=1)


def _slope(values: Sequence[float]) -> float:
    heights = np.asarray(values, "float64")
    first, second = _pairs(len(heights))
    return float(np.median((heights[second] - heights[first]) / (second - first)))


NOBODY = "no Python object: a running function or native code"
"""What an object that nothing refers to is held by."""

_MOST_STEPS = 10
_MOST_AT_A_TIME = 16
_MOST_SECONDS = 1.0


class _Step:
    """One object on the way up, and what it holds on the way down."""

    __slots__ = ("below", "one")

    def __init__(self, one: Any, below: "_Step | None") -> None:
        self.one, self.below = one, below


def holder(sample: Any) -> str | None:
    """Return in words who holds an object, None if it was not found out in time.

    References are followed upward, level by level, to a callback, a model, a layer, a
    module or a class; ten levels and a second of processor time at most.

    Args:
        sample: the object; the caller's own reference does not count.

    Example:
        >>> from types import SimpleNamespace
        >>> keep = keras.callbacks.Callback()
        >>> keep.kept = [[SimpleNamespace()]]
        >>> holder(keep.kept[0][0])
        'the callback Callback, in .kept[...][...]'
    """
    deadline = time.thread_time() + _MOST_SECONDS
    level = [_Step(sample, None)]
    seen = {id(sample)}
    for _ in range(_MOST_STEPS):
        above = [step for step in _above(level) if id(step.one) not in seen]
        for is_place, name in _PLACES:
            for step in above:
                if is_place(step.one):
                    return _words(name(step.one), step)
        if not above:
            return _words(NOBODY, level[0])
        if time.thread_time() > deadline:
            return None
        seen.update(id(step.one) for step in above)
        level = above[:_MOST_AT_A_TIME]
    return None


def _above(level: Sequence[_Step]) -> list[_Step]:
    """Return what refers to the objects of a level, but for the search itself."""
    steps = {id(step.one): step for step in level}
    known = gc.get_referrers(*(step.one for step in level))
    found = list(_holding(known, steps))
    if found:
        return found
    for held, types in held_by(gc.get_objects()):
        unknown = untracked(held, types)
        if not steps.keys().isdisjoint(map(id, gc.get_referents(*unknown))):
            found += _holding(unknown, steps)
    return found


def _holding(candidates: Iterable[Any], steps: Mapping[int, _Step]) -> Iterator[_Step]:
    for one in candidates:
        if isinstance(one, FrameType) or is_own(type(one)):
            continue
        below = (id(each) for each in gc.get_referents(one) if id(each) in steps)
        found = next(below, None)
        if found is not None:
            yield _Step(one, steps[found])


def _is_module(one: Any) -> bool:
    return type(one) is dict and _module_of(one) is not None


def _module_of(one: dict[Any, Any]) -> ModuleType | None:
    module = sys.modules.get(one.get("__name__", ""))
    return module if module is not None and vars(module) is one else None


def _instance(kind: type) -> Callable[[Any], bool]:
    return lambda one: issubclass(type(one), kind)


def _described(what: str) -> Callable[[Any], str]:
    return lambda one: f"the {what} {type(one).__name__}"


_PLACES: tuple[tuple[Callable[[Any], bool], Callable[[Any], str]], ...] = (
    (_instance(keras.callbacks.Callback), _described("callback")),
    (_instance(keras.Model), _described("model")),
    (_instance(keras.layers.Layer), _described("layer")),
    (_instance(keras.optimizers.Optimizer), _described("optimizer")),
    (_is_module, lambda one: f"the module {one['__name__']}"),
    (_instance(type), lambda one: f"the class {one.__qualname__}"),
)


def _words(place: str, step: _Step) -> str:
    path = "".join(_links(step))
    return f"{place}, in {path}" if path else place


def _links(step: _Step | None) -> Iterator[str]:
    """Yield how each object on the way down is reached from the one above."""
    while step is not None and step.below is not None:
        above, below = step.one, step.below.one
        yield _link(above, below)
        step = step.below


def _link(above: Any, below: Any) -> str:
    if isinstance(above, dict):
        key = next((key for key, value in above.items() if value is below), None)
        is_names = isinstance(key, str) and key.isidentifier()
        return f".{key}" if is_names else "[...]"
    if isinstance(above, list | tuple | set | frozenset):
        return "[...]"
    if isinstance(above, FunctionType):
        return f" of {above.__qualname__}()"
    if isinstance(above, CellType | type) or below is _own_dict(above):
        return ""
    held = (name for name, value in _attributes(above) if value is below)
    return f".{next(held, type(above).__name__)}"


def _own_dict(one: Any) -> dict[str, Any]:
    # Past a class's own ways to give attributes, which may do anything.
    with suppress(AttributeError):
        return object.__getattribute__(one, "__dict__")
    return {}


def _attributes(one: Any) -> Iterator[tuple[str, Any]]:
    yield from _own_dict(one).items()
    for base in type(one).__mro__:
        for name, member in vars(base).items():
            if isinstance(member, MemberDescriptorType):
                with suppress(AttributeError):  # a slot that is empty
                    yield name, member.__get__(one)
