"""Finds the expression that reaches an object, such as `search.trials[3].model`."""

import gc
import inspect
import sys
import sysconfig
import time
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import suppress
from itertools import chain
from pathlib import Path
from types import (
    CellType,
    CodeType,
    FrameType,
    FunctionType,
    MappingProxyType,
    MemberDescriptorType,
    ModuleType,
)
from typing import Any, NamedTuple

import keras

from kerasmem.memory.held_arrays import attribute, is_own

_SECONDS = 2.0
_OURS = str(Path(__file__).parents[1])
_LEAVES = (str, bytes, int, float, complex, type(None), ModuleType, FrameType, CodeType)
_LIBRARIES = tuple(
    sysconfig.get_paths()[key] for key in ("stdlib", "platstdlib", "purelib", "platlib")
)
_PLACES = {
    "callback": keras.callbacks.Callback,
    "model": keras.Model,
    "layer": keras.layers.Layer,
    "optimizer": keras.optimizers.Optimizer,
}
_SEQUENCES = (list, tuple, deque)
_OWN_DICT_IS_COPIED = sys.version_info < (3, 13)


class Link(NamedTuple):
    """An object and the reference through which it was reached.

    Args:
        object: The object.
        above: Link of the referring object, or None for a variable.
        name: Name of the root variable, such as `"trials"`.
        where: Location of the variable: `"a local of run()"`, or a module name.
        is_own: Whether the variable belongs to the program, not to a library.
    """

    object: Any
    above: "Link | None" = None
    name: str = ""
    where: str = ""
    is_own: bool = True

    def chain(self) -> list["Link"]:
        """Return the links from the root to this one."""
        links: list[Link] = [self]
        while links[-1].above is not None:
            links.append(links[-1].above)
        return links[::-1]

    def __str__(self) -> str:
        root, *below = self.chain()
        return root.name + _path([root, *below])


def _path(links: Sequence[Link]) -> str:
    text, above = "", links[0].object
    for link in links[1:]:
        is_cells = isinstance(above, FunctionType) and type(link.object) is tuple
        if not is_cells and link.object is not own_dict(above):
            text += _step(above, link.object)
            above = link.object
    return text


def holder(link: Link) -> str:
    """Describe the innermost Keras object that holds an object, or else its name.

    Example:
        >>> keep = keras.callbacks.Callback()
        >>> keep.kept = [[object()]]
        >>> (link,) = names([keep.kept[0][0]]).values()
        >>> holder(link)
        'the callback Callback, in .kept[0][0]'
    """
    links = link.chain()
    for number in reversed(range(len(links) - 1)):
        one = links[number].object
        for what, kind in _PLACES.items():
            if issubclass(type(one), kind):
                name = attribute(type(one), "__name__")
                return f"the {what} {name}, in {_path(links[number:])}"
    return f"{link} ({link.where})"


def names(objects: Sequence[Any]) -> dict[int, Link]:
    """Return the link of each object by its identity.

    References are followed breadth first, so that names are short. The search starts at
    local variables and the program's own modules, then continues at all other modules.

    Objects that are not found within two seconds of CPU time are left out.

    Example:
        >>> def search():
        ...     trials = [{"model": object()}]
        ...     (link,) = names([trials[0]["model"]]).values()
        ...     return f"{link}, {link.where}"
        >>> search()
        "trials[0]['model'], a local of search()"
    """
    target_ids = {id(each) for each in objects}
    # The caller's list and this search must not appear as holders.
    visited_ids = {id(objects), id(target_ids)}
    # A module namespace must not connect unrelated variables.
    visited_ids |= {id(vars(module)) for module in list(sys.modules.values()) if module}
    links_by_id: dict[int, Link] = {}
    until = time.thread_time() + _SECONDS
    for roots in (local_variables(), _globals(own=True), _globals(own=False)):
        links, queue = roots, deque[Link]()
        while len(links_by_id) < len(target_ids) and time.thread_time() < until:
            for link in links:
                if id(link.object) not in visited_ids:
                    visited_ids.add(id(link.object))
                    queue.append(link)
                    if id(link.object) in target_ids:
                        links_by_id[id(link.object)] = link
            if not queue:
                break
            links = _below(queue.popleft(), visited_ids)
    return links_by_id


def _below(link: Link, seen: set[int]) -> Iterator[Link]:
    for each in gc.get_referents(link.object):
        if id(each) not in seen and not _is_leaf(each):
            yield Link(each, link, "", link.where, link.is_own)


def _is_leaf(one: Any) -> bool:
    # `isinstance` may run code of the object and cause warnings.
    return issubclass(type(one), _LEAVES) or is_own(type(one))


def local_variables() -> Iterator[Link]:
    """Yield the local variables of running functions outside this package."""
    for frame in list(sys._current_frames().values()):
        running: FrameType | None = frame
        while running is not None:
            code = running.f_code
            is_function = bool(code.co_flags & inspect.CO_OPTIMIZED)
            if is_function and not code.co_filename.startswith(_OURS):
                values = running.f_locals
                where = f"a local of {code.co_qualname}()"
                for name, value in list(values.items()):
                    if not _is_leaf(value):
                        yield Link(value, None, name, where)
                if _OWN_DICT_IS_COPIED:
                    values.clear()  # the frame's cached dict would keep deleted objects
            running = running.f_back


def _globals(*, own: bool) -> Iterator[Link]:
    for name, module in list(sys.modules.items()):
        is_ours = name.partition(".")[0] == "kerasmem"
        if is_ours or not isinstance(module, ModuleType):
            continue
        file = getattr(module, "__file__", None)
        is_file = isinstance(file, str) and not file.startswith(_LIBRARIES)
        if (is_file or name == "__main__") == own:
            prefix = "" if name == "__main__" else f"{name}."
            for variable, value in list(vars(module).items()):
                if not issubclass(type(value), _LEAVES):
                    yield Link(value, None, f"{prefix}{variable}", name, own)


def _step(above: Any, below: Any) -> str:
    if isinstance(above, CellType):
        return ""
    form, parts = ".{}", attributes(above)
    if isinstance(above, dict):
        form, parts = "[{!r}]", above.items()
    elif isinstance(above, _SEQUENCES):
        form, parts = "[{}]", enumerate(above)
    elif isinstance(above, FunctionType):
        cells = zip(above.__code__.co_freevars, above.__closure__ or (), strict=True)
        parts = chain(((f"<closure {name}>", cell) for name, cell in cells), parts)
    key = next((key for key, value in parts if value is below), None)
    if isinstance(key, str | int):
        return form.format(key)
    is_inside = isinstance(above, (dict, set, frozenset, *_SEQUENCES))
    return "[...]" if is_inside else f".<{attribute(type(above), '__name__')}>"


def own_dict(one: Any) -> dict[str, Any]:
    """Return the `__dict__` of an object, or an empty dictionary."""
    # A class may define `__getattribute__` with side effects.
    with suppress(AttributeError):
        own = object.__getattribute__(one, "__dict__")
        # The dictionary of a class is a proxy of the one that holds the attributes.
        return gc.get_referents(own)[0] if isinstance(own, MappingProxyType) else own
    return {}


def attributes(one: Any) -> Iterator[tuple[str, Any]]:
    """Yield names and values of the attributes in the `__dict__` and the slots."""
    yield from own_dict(one).items()
    for base in attribute(type(one), "__mro__"):
        for name, member in attribute(base, "__dict__").items():
            if isinstance(member, MemberDescriptorType):
                with suppress(AttributeError):  # An unset slot.
                    yield name, member.__get__(one)
