"""Counts Python objects by type and size, and finds the objects that reference them."""

import gc
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from types import CellType, FrameType, FunctionType, MemberDescriptorType, ModuleType
from typing import Any, NamedTuple

import keras

from kerasmem.memory.held_arrays import array_bytes, arrays_of, held_by, untracked
from kerasmem.memory.kinds import attribute, is_own, module_of

_MOST_OBJECTS = 5_000_000
_HIDDEN = ("src", "python")
_LEAST_BYTES = 64 * 1024.0
_LEAST_NUMBER = 0.9  # Per epoch, for types outside of the standard library.
_MANY = 100.0


class Census(NamedTuple):
    """Counts of objects by type name.

    Args:
        number: Number of objects by type name.
        nbytes: Bytes of arrays and tensors by type name.
        arrays: Identity and bytes of each array. Python may reuse an identity.
    """

    number: Counter[str]
    nbytes: Counter[str]
    arrays: frozenset[tuple[int, int]]


class Growth(NamedTuple):
    """Growth of a type per epoch, in objects and in bytes of arrays."""

    kind: str
    number: float
    nbytes: float


def object_count() -> int:
    """Return the number of blocks from Python's allocator, about one per object.

    The call takes microseconds.
    """
    return sys.getallocatedblocks()


def census() -> Census:
    """Count the objects tracked by the garbage collector, and the arrays they hold.

    Numbers, text and objects of kerasmem are excluded. A census takes some tenths of a
    second and is limited to the newest five million objects.
    """
    arrays = {id(each): each for each in arrays_of(gc.get_objects()[-_MOST_OBJECTS:])}
    sizes: Counter[str] = Counter()
    size_by_id: set[tuple[int, int]] = set()
    for key, each in arrays.items():
        size_by_id.add((key, size := array_bytes(each)))
        sizes[kind_name(type(each))] += size
    # Only now: a tensor may cache a shape object when its size is read.
    objects = gc.get_objects()[-_MOST_OBJECTS:]
    number: Counter[str] = Counter()
    for kind, count in Counter(map(type, objects)).items():
        if not is_own(kind):
            number[kind_name(kind)] += count
    number |= Counter(kind_name(type(each)) for each in arrays.values())
    return Census(number, sizes, frozenset(size_by_id))


def kind_name(kind: type) -> str:
    """Return the name of a type without the private modules of its package.

    Example:
        >>> kind_name(dict), kind_name(keras.layers.Dense)
        ('dict', 'keras.Dense')
    """
    parts = module_of(kind).split(".")
    hidden = (i for i, part in enumerate(parts) if part in _HIDDEN or part[:1] == "_")
    module = ".".join(parts[: next(hidden, len(parts))])
    name = f"{module}.{attribute(kind, '__qualname__')}"
    return name.removeprefix("builtins.").removeprefix(".")


def grown(
    before: Census, after: Census, *, epochs: int, blocks: float = 0.0
) -> list[Growth]:
    """Return up to three types that grew most, sorted by bytes, then by number.

    Standard-library types need at least 100 objects and a tenth of `blocks`, the growth
    of all objects per epoch.
    """
    rates = [
        Growth(
            kind,
            (after.number[kind] - before.number[kind]) / epochs,
            (after.nbytes[kind] - before.nbytes[kind]) / epochs,
        )
        for kind in after.number
    ]
    of_size = [one for one in rates if one.nbytes >= _LEAST_BYTES]
    # If megabytes of arrays grow, a few other objects are irrelevant.
    few = _MANY if of_size else _LEAST_NUMBER

    def is_many(one: Growth) -> bool:
        package = one.kind.partition(".")[0]
        is_pythons = package == one.kind or package in sys.stdlib_module_names
        return one.number >= (max(_MANY, blocks / 10) if is_pythons else few)

    of_number = [one for one in rates if one not in of_size and is_many(one)]
    of_size.sort(key=lambda one: -one.nbytes)
    return [*of_size, *sorted(of_number, key=lambda one: -one.number)][:3]


def newest(kind: str, number: int, before: Census) -> list[Any]:
    """Return up to three recent objects of a type, for arrays the largest new ones.

    Call after a garbage collection, which leaves objects sorted by age. `number` is the
    number of new objects since the census `before`.
    """
    objects = gc.get_objects()[-_MOST_OBJECTS:]
    arrays = {id(each): each for each in arrays_of(objects)}.values()
    of_kind = ((array_bytes(each), each) for each in _of_kind([*arrays], kind))
    new = [(n, each) for n, each in of_kind if (id(each), n) not in before.arrays]
    newest_last = [each for _, each in sorted(new, key=lambda one: one[0])]
    newest_last = newest_last or _of_kind(objects, kind)
    late = newest_last[-max(1, number) :]
    return late[:: -(-len(late) // 3) or 1]


def _of_kind(objects: list[Any], kind: str) -> list[Any]:
    kinds = {each for each in set(map(type, objects)) if kind_name(each) == kind}
    return [each for each in objects if type(each) in kinds]


NOBODY = "no Python object: a running function or native code"
"""Description of the holder of an object without referrers."""

_MOST_STEPS = 10
_MOST_AT_A_TIME = 16
_MOST_SECONDS = 1.0


class _Holder:
    """An object on the path to a holder, and the object below it."""

    __slots__ = ("below", "one")

    def __init__(self, one: Any, below: "_Holder | None") -> None:
        self.one, self.below = one, below


def holder(sample: Any) -> str | None:
    """Describe the holder of an object. Returns None if the search times out.

    References are followed upward to a callback, model, layer, optimizer, module or
    class. The search stops after ten levels or one second of CPU time. The reference of
    the caller is ignored.

    Example:
        >>> from types import SimpleNamespace
        >>> keep = keras.callbacks.Callback()
        >>> keep.kept = [[SimpleNamespace()]]
        >>> holder(keep.kept[0][0])
        'the callback Callback, in .kept[...][...]'
    """
    deadline = time.thread_time() + _MOST_SECONDS
    level = [_Holder(sample, None)]
    visited_ids = {id(sample)}
    for _ in range(_MOST_STEPS):
        above = [step for step in _above(level) if id(step.one) not in visited_ids]
        for is_place, name in _PLACES:
            for step in above:
                if is_place(step.one):
                    return _words(name(step.one), step)
        if not above:
            return _words(NOBODY, level[0])
        if time.thread_time() > deadline:
            return None
        visited_ids.update(id(step.one) for step in above)
        level = above[:_MOST_AT_A_TIME]
    return None


def _above(level: Sequence[_Holder]) -> list[_Holder]:
    steps = {id(step.one): step for step in level}
    referrers = gc.get_referrers(*(step.one for step in level))
    holders = list(_holding(referrers, steps))
    if holders:
        return holders
    for container in held_by(gc.get_objects()):
        unknown = untracked(container)
        if not steps.keys().isdisjoint(map(id, gc.get_referents(*unknown))):
            holders += _holding(unknown, steps)
    return holders


def _holding(
    candidates: Iterable[Any], steps: Mapping[int, _Holder]
) -> Iterator[_Holder]:
    for one in candidates:
        if isinstance(one, FrameType) or is_own(type(one)):
            continue
        below = (id(each) for each in gc.get_referents(one) if id(each) in steps)
        target = next(below, None)
        if target is not None:
            yield _Holder(one, steps[target])


def _is_module(one: Any) -> bool:
    return type(one) is dict and _module_of(one) is not None


def _module_of(one: dict[Any, Any]) -> ModuleType | None:
    module = sys.modules.get(one.get("__name__", ""))
    return module if module is not None and vars(module) is one else None


def _instance(kind: type) -> Callable[[Any], bool]:
    return lambda one: issubclass(type(one), kind)


def _described(what: str) -> Callable[[Any], str]:
    return lambda one: f"the {what} {attribute(type(one), '__name__')}"


_PLACES: tuple[tuple[Callable[[Any], bool], Callable[[Any], str]], ...] = (
    (_instance(keras.callbacks.Callback), _described("callback")),
    (_instance(keras.Model), _described("model")),
    (_instance(keras.layers.Layer), _described("layer")),
    (_instance(keras.optimizers.Optimizer), _described("optimizer")),
    (_is_module, lambda one: f"the module {one['__name__']}"),
    (_instance(type), lambda one: f"the class {attribute(one, '__qualname__')}"),
)


def _words(place: str, step: _Holder) -> str:
    path = "".join(_links(step))
    return f"{place}, in {path}" if path else place


def _links(step: _Holder | None) -> Iterator[str]:
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
    if isinstance(above, CellType | type) or below is own_dict(above):
        return ""
    names = (name for name, value in attributes(above) if value is below)
    return f".{next(names, attribute(type(above), '__name__'))}"


def own_dict(one: Any) -> dict[str, Any]:
    """Return the `__dict__` of an object, or an empty dictionary."""
    # A class may define `__getattribute__` with side effects.
    with suppress(AttributeError):
        return object.__getattribute__(one, "__dict__")
    return {}


def attributes(one: Any) -> Iterator[tuple[str, Any]]:
    """Yield names and values of the attributes in the `__dict__` and the slots."""
    yield from own_dict(one).items()
    for base in attribute(type(one), "__mro__"):
        for name, member in attribute(base, "__dict__").items():
            if isinstance(member, MemberDescriptorType):
                with suppress(AttributeError):  # An unset slot.
                    yield name, member.__get__(one)
