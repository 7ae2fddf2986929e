"""The name by which a program reaches an object: `search.trials[3].model`."""

import functools
import gc
import inspect
import sys
import sysconfig
import time
from collections import deque
from collections.abc import Iterator, Sequence
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
        above_it: Any = None
        for link in below:
            text += _step(above_it, above, link.object)
            above_it, above = above, link.object
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
        begin = deque(link for link in roots if id(link.object) not in seen)
        _search(begin, wanted, seen, reached, until)
        if len(reached) == len(wanted) or time.thread_time() > until:
            break
    return reached


def _search(
    queue: deque[Link],
    wanted: set[int],
    seen: set[int],
    reached: dict[int, Link],
    until: float,
) -> None:
    for link in queue:
        if id(link.object) in wanted:
            reached.setdefault(id(link.object), link)
    seen.update(id(link.object) for link in queue)
    while queue and len(reached) < len(wanted):
        link = queue.popleft()
        for each in gc.get_referents(link.object):
            if id(each) in seen or _is_leaf(each):
                continue
            seen.add(id(each))
            below = Link(each, link)
            if id(each) in wanted:
                reached[id(each)] = below
            queue.append(below)
        if time.thread_time() > until:
            return


def _is_leaf(one: Any) -> bool:
    # By its type: to ask an object for its class may run code of it, and warn.
    return issubclass(type(one), _LEAVES) or is_own(type(one))


def local_variables() -> Iterator[Link]:
    """Yield the local variables of the functions that run, but for ours."""
    for frame in list(sys._current_frames().values()):
        running: FrameType | None = frame
        while running is not None:
            yield from _variables(running)
            running = running.f_back


def _variables(frame: FrameType) -> Iterator[Link]:
    code = frame.f_code
    is_function = bool(code.co_flags & inspect.CO_OPTIMIZED)
    if not is_function or code.co_filename.startswith(_OURS):
        return
    values = frame.f_locals
    where = f"a local of {code.co_qualname}()"
    for name, value in list(values.items()):
        if not _is_leaf(value):
            yield Link(value, None, name, where)
    if _OWN_DICT_IS_COPIED:
        values.clear()  # the frame keeps this copy, and it what was deleted since


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


@functools.cache
def _library_folders() -> tuple[str, ...]:
    paths = sysconfig.get_paths()
    return tuple({paths[key] for key in ("stdlib", "platstdlib", "purelib", "platlib")})


def _is_programs(module: ModuleType) -> bool:
    if module.__name__ == "__main__":
        return True
    file = getattr(module, "__file__", None)
    return isinstance(file, str) and not file.startswith(_library_folders())


def _step(above_it: Any, above: Any, below: Any) -> str:
    """Return how one object is written as a part of another.

    Args:
        above_it: what holds `above`, None if it is the root.
        above: a container or an object.
        below: what it refers to.
    """
    if isinstance(above, dict):
        key = next((key for key, value in above.items() if value is below), None)
        if above is own_dict(above_it):
            return f".{key}"
        return f"[{key!r}]" if isinstance(key, str | int) else "[...]"
    if isinstance(above, CellType) or below is own_dict(above):
        return ""
    if isinstance(above, FunctionType) and isinstance(below, tuple):
        return ""  # of its cells, or of its defaults
    if isinstance(above, tuple) and isinstance(above_it, FunctionType):
        return _closure_name(above_it, below)
    if isinstance(above, list | tuple | deque):
        index = next((i for i, value in enumerate(above) if value is below), None)
        return "[...]" if index is None else f"[{index}]"
    if isinstance(above, set | frozenset):
        return "{...}"
    held = (name for name, value in attributes(above) if value is below)
    kind = attribute(type(above), "__name__")
    return f".{next(held, f'<{kind}>')}"


def _closure_name(function: FunctionType, cell: Any) -> str:
    cells = zip(function.__code__.co_freevars, function.__closure__ or (), strict=True)
    held = (name for name, each in cells if each is cell)
    return f".<closure {next(held, '')}>".replace(" >", ">")
