"""The name by which a program reaches an object: `search.trials[3].model`."""

import gc
import inspect
import sys
import sysconfig
import time
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from types import (
    CellType,
    CodeType,
    FrameType,
    FunctionType,
    ModuleType,
)
from typing import Any, NamedTuple

from kerasmem.memory.census import attributes, own_dict
from kerasmem.memory.kinds import attribute, is_own

_SECONDS = 2.0
_OURS = str(Path(__file__).parent)
_LEAVES = (str, bytes, int, float, complex, type(None), ModuleType, FrameType, CodeType)
_LIBRARIES = tuple(
    sysconfig.get_paths()[key] for key in ("stdlib", "platstdlib", "purelib", "platlib")
)
_CONTAINERS = (dict, list, tuple, deque)
_OWN_DICT_IS_COPIED = sys.version_info < (3, 13)


class Link(NamedTuple):
    """An object and the one that it was reached from, None for a root.

    Args:
        object: any object.
        above: link of what refers to it.
        name: of a root, in a program: `"trials"`.
        where: of a root: `"a local of run()"`, or a module's name.
        is_own: of a root: whether it is the program's, not that of a library.
    """

    object: Any
    above: "Link | None" = None
    name: str = ""
    where: str = ""
    is_own: bool = True

    def chain(self) -> list["Link"]:
        """Return the links from the root down to this one."""
        links: list[Link] = []
        link: Link | None = self
        while link is not None:
            links.append(link)
            link = link.above
        return links[::-1]

    @property
    def root(self) -> "Link":
        """The link that a variable holds."""
        return self.chain()[0]

    def __str__(self) -> str:
        root, *below = self.chain()
        text, above = root.name, root.object
        for link in below:
            is_tuple = isinstance(link.object, tuple)
            is_cells = isinstance(above, FunctionType) and is_tuple
            if not is_cells and link.object is not own_dict(above):
                text += _step(above, link.object)
                above = link.object
        return text


def names(objects: Sequence[Any], seconds: float = _SECONDS) -> dict[int, Link]:
    """Return how a program reaches objects, by their identity.

    References are followed downward and breadth first, so that a name is as short as
    can be: from the local variables of functions that run and from the program's own
    modules, then from all others.

    Args:
        objects: what to name. One that no name reaches, or none in time, is left out.
        seconds: most processor time that the search may take.

    Example:
        >>> def search():
        ...     trials = [{"model": object()}]
        ...     (link,) = names([trials[0]["model"]]).values()
        ...     return f"{link}, {link.root.where}"
        >>> search()
        "trials[0]['model'], a local of search()"
    """
    wanted = {id(each) for each in objects}
    # Neither the caller's list nor this search is a place where anything stays.
    seen = {id(objects), id(wanted)}
    # Nor is a module's namespace a way from one variable to another.
    seen |= {id(vars(module)) for module in list(sys.modules.values()) if module}
    reached: dict[int, Link] = {}
    until = time.thread_time() + seconds
    for roots in (local_variables(), _globals(own=True), _globals(own=False)):
        links, queue = roots, deque[Link]()
        while len(reached) < len(wanted) and time.thread_time() < until:
            for link in links:
                if id(link.object) not in seen:
                    seen.add(id(link.object))
                    queue.append(link)
                    if id(link.object) in wanted:
                        reached[id(link.object)] = link
            if not queue:
                break
            links = _below(queue.popleft(), seen)
    return reached


def _below(link: Link, seen: set[int]) -> Iterator[Link]:
    for each in gc.get_referents(link.object):
        if id(each) not in seen and not _is_leaf(each):
            yield Link(each, link)


def _is_leaf(one: Any) -> bool:
    # By its type: to ask an object for its class may run code of it, and warn.
    return issubclass(type(one), _LEAVES) or is_own(type(one))


def local_variables() -> Iterator[Link]:
    """Yield the local variables of the functions that run, but for ours."""
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
                    values.clear()  # the frame keeps it, and it what was deleted since
            running = running.f_back


def _globals(*, own: bool) -> Iterator[Link]:
    """Yield the global variables of modules: the program's own, or all others."""
    for name, module in list(sys.modules.items()):
        if not isinstance(module, ModuleType) or _is_programs(module) != own:
            continue
        if name.partition(".")[0] == "kerasmem":
            continue
        prefix = "" if name == "__main__" else f"{name}."
        for variable, value in list(vars(module).items()):
            if not issubclass(type(value), _LEAVES):
                yield Link(value, None, f"{prefix}{variable}", name, own)


def _is_programs(module: ModuleType) -> bool:
    if module.__name__ == "__main__":
        return True
    file = getattr(module, "__file__", None)
    return isinstance(file, str) and not file.startswith(_LIBRARIES)


def _step(above: Any, below: Any) -> str:
    """Return how an object is written as a part of the one above."""
    for form, parts in _parts(above):
        for key, value in parts:
            if value is below:
                return form.format(key) if isinstance(key, str | int) else "[...]"
    kind = attribute(type(above), "__name__")
    return "[...]" if isinstance(above, _CONTAINERS) else f".<{kind}>"


def _parts(one: Any) -> Iterator[tuple[str, Iterable[tuple[Any, Any]]]]:
    """Yield how the parts of an object are written, and their names with them."""
    if isinstance(one, dict):
        yield "[{!r}]", one.items()
    elif isinstance(one, list | tuple | deque):
        yield "[{}]", enumerate(one)
    elif isinstance(one, set | frozenset):
        yield "{{...}}", enumerate(one)
    elif isinstance(one, FunctionType):
        cells = zip(one.__code__.co_freevars, one.__closure__ or (), strict=True)
        yield ".<closure {}>", cells
    elif isinstance(one, CellType):
        yield "", enumerate(gc.get_referents(one))
    yield ".{}", attributes(one)
