"""What stayed when a piece of a program ended, who holds it, and what can be freed."""

import gc
import multiprocessing
import threading
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import suppress
from functools import cached_property
from itertools import chain
from typing import Any, NamedTuple, Self, TypeVar
from weakref import ref

import keras
import psutil

from kerasmem import backends
from kerasmem.backends.heap import CHeap, c_heap, trim_heap
from kerasmem.backends.steps import traced_functions
from kerasmem.checks import invalid
from kerasmem.errors import ConfigError
from kerasmem.extras.growth.causes import causes
from kerasmem.extras.growth.names import local_variables
from kerasmem.extras.growth.stayed import OF_KERAS, Stayed, stayed
from kerasmem.memory.held_arrays import arrays_of
from kerasmem.memory.kinds import KindTable, is_own
from kerasmem.processes.host import resident_bytes
from kerasmem.records import Finding, own_allocators
from kerasmem.units import format_bytes

_T = TypeVar("_T")


class Freed(NamedTuple):
    """Bytes that were given back.

    Args:
        host_bytes: Resident bytes of the process, before less after.
        device_bytes: Bytes in use by device, before less after.
    """

    host_bytes: int
    device_bytes: dict[str, int]


class Scope:
    """Memory growth of a `with` block: what stays after it, and who holds that.

    The growth is counted from the moment when the scope is created. Without a `with`
    block, `update()` reads what has stayed so far, such as in a whole process. The cost
    is one scan of all objects at the beginning and one at the end, some tenths of a
    second each. The holders are searched when `stayed` or `findings` is read.

    Args:
        name: Name of the scope in findings.

    Attributes:
        host_bytes: Resident bytes of the process, after less before.
        free_heap_bytes: Bytes of `host_bytes` that the C library keeps: freed, to be
            used again.
        device_bytes: Bytes in use by device, after less before.
        traced: Name and number of new traces of each compiled function that lives.
        traces: Number of new traces by the names of the compiled functions.
        graphs: Bytes of the variables of each new graph that only the framework holds.
        threads: Names of threads that were started and still run.
        files: Paths of files that were opened and are still open.

    Raises:
        ConfigError: If `name` is not a string, or empty; if a figure is read before
            the scope has ended.

    Example:
        >>> import kerasmem as km
        >>> kept = []
        >>> with km.memory.scope("trial") as scope:
        ...     kept.append(np.zeros(1000))
        >>> [each.array_bytes for each in scope.stayed]
        [8000]
    """

    host_bytes: int
    free_heap_bytes: int
    device_bytes: dict[str, int]
    traced: list[tuple[str, int]]
    traces: Counter[str]
    graphs: list[int]
    threads: list[str]
    files: list[str]
    _children: frozenset[int]
    _new: list[ref[Any]]

    def __init__(self, name: str = "scope") -> None:
        if not isinstance(name, str) or not name:
            raise invalid("scope", "name", name, "a text that is not empty")
        self.name = name
        self._before = _Snapshot(collected=False)

    def __getattr__(self, name: str) -> Any:
        """Raise the error for a figure that is not there yet, or for no attribute."""
        if name not in Scope.__annotations__:
            raise AttributeError(f"{type(self).__name__!r} has no attribute {name!r}")
        raise ConfigError(
            f"The scope {self.name!r} has no figures yet. Expected: a scope that has "
            "ended. Received: one that runs. Next: leave its `with` block, or call "
            "update()."
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.update()

    def update(self) -> None:
        """Read what has stayed until now. A scope does it when it ends."""
        before, after = self._before, _Snapshot(collected=True)
        self.__dict__.pop("stayed", None)
        self._new = _new(before.objects, after.objects)
        self.host_bytes = after.host_bytes - before.host_bytes
        used_bytes = after.heap.used_bytes - before.heap.used_bytes
        free = min(self.host_bytes - used_bytes, self.host_bytes, after.heap.free_bytes)
        self.free_heap_bytes = max(0, free)
        now = Counter(after.device_bytes)
        now.subtract(before.device_bytes)
        self.device_bytes = dict(now)
        earlier_traces = {id(one.function): one.traces for one in before.traced}
        more = [
            (t.name, t.traces - earlier_traces.get(id(t.function), 0))
            for t in after.traced
        ]
        self.traced = [(name, number) for name, number in more if number > 0]
        self.traces = Counter()
        for name, number in self.traced:
            self.traces[name] += number
        self.graphs = _new(before.graphs, after.graphs)
        self.threads = sorted(_new(before.threads, after.threads))
        self.files = sorted(after.files - before.files)
        self._children = after.children - before.children

    @property
    def children(self) -> list[int]:
        """Process ids of child processes that were started and still run."""
        # One that was short-lived has ended by now.
        return sorted(filter(_runs, self._children))

    @cached_property
    def stayed(self) -> list[Stayed]:
        """Objects that stayed by who holds them, those with most bytes first."""
        return stayed(self._new)

    @property
    def findings(self) -> list[Finding]:
        """Usual causes of the growth with their remedies; empty if there is none."""
        return [
            Finding(kind, f"{text} (Scope {self.name!r}.)", 0, None, "scope")
            for kind, text in causes(self)
        ]

    def free(self) -> Freed:
        """Give back what Keras, the framework and the C library can give back.

        Keras's global state (`keras.utils.clear_session`), what the garbage collector
        finds, the framework's caches of compiled programs and of device memory, and
        free pages of the C library's heap. Models that a variable holds continue to
        work; their steps are compiled again when they are called.

        Returns:
            The bytes given back, of the host and by device.
        """
        host, devices = resident_bytes(), Counter(_reserved_bytes())
        keras.utils.clear_session()
        gc.collect()
        backends.current().free_caches()
        gc.collect()
        trim_heap()
        devices.subtract(_reserved_bytes())
        return Freed(host - resident_bytes(), dict(devices))

    def table(self) -> str:
        """Return what stayed as text.

        Returns:
            One line of figures, then a line for each holder.
        """
        figures = [
            f"host {_signed(self.host_bytes)}",
            f"of which {format_bytes(self.free_heap_bytes)} are free",
            *(f"{name} {_signed(size)}" for name, size in self.device_bytes.items()),
            *(f"{n} more traces of {name}" for name, n in self.traces.items()),
            *([f"{len(self.graphs)} graphs of the framework"] if self.graphs else []),
            *(f"thread {name!r}" for name in self.threads),
            *(f"child process {number}" for number in self.children),
            *(f"open file {path}" for path in self.files),
        ]
        lines = [f"{self.name}: {', '.join(figures)}"]
        for one in self.stayed:
            kinds = ", ".join(f"{number} {kind}" for kind, number in one.kinds.items())
            lines.append(f"  {format_bytes(one.array_bytes):>10}  {one}: {kinds}")
        return "\n".join(lines)


class _Snapshot:
    """What a process has at one moment: memory, objects of Keras, arrays, traces.

    Takes about two tenths of a second, and Python's own collection as much again.

    Args:
        collected: Whether all garbage is collected before, or the youngest alone: what
            is garbage then may die later, and counts as there.
    """

    def __init__(self, *, collected: bool) -> None:
        gc.collect(2 if collected else 1)
        objects = gc.get_objects()
        process, backend = psutil.Process(), backends.current()
        devices = own_allocators(backend.device_memory())
        self.device_bytes = {device.name: device.current_bytes for device in devices}
        self.host_bytes = resident_bytes()
        self.heap = c_heap() or CHeap(0, 0)
        # By their own identity: an object has one reference, as long as it is kept.
        self.objects = {id(each): each for each in _references(objects)}
        self.traced = [*traced_functions(objects).values()]
        self.graphs = backend.orphaned_graphs(objects)
        self.threads = {t.ident or 0: t.name for t in threading.enumerate()}
        self.files = frozenset(file.path for file in process.open_files())
        # Not all below: what a child that was there before begins, this process did
        # not. Processes of a fork server are its children, though this process began
        # them.
        children = {child.pid for child in process.children()}
        children |= {child.pid or 0 for child in multiprocessing.active_children()}
        self.children = frozenset(filter(_runs, children))


def _new(before: Mapping[int, _T], after: Mapping[int, _T]) -> list[_T]:
    return [value for key, value in after.items() if key not in before]


def _references(objects: list[Any]) -> Iterator["ref[Any]"]:
    kinds = KindTable(lambda kind: issubclass(kind, OF_KERAS) and not is_own(kind))
    # A plain dict of arrays that a local variable holds is unknown to the collector.
    local_values = [link.object for link in local_variables()]
    arrays = (
        x for x in arrays_of(objects + local_values) if not isinstance(x, OF_KERAS)
    )
    for each in chain((x for x in objects if kinds[type(x)]), arrays):
        with suppress(TypeError):  # a kind that cannot be referred to weakly
            yield ref(each)


def _runs(number: int) -> bool:
    try:
        return psutil.Process(number).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def _reserved_bytes() -> dict[str, int]:
    devices = own_allocators(backends.current().device_memory())
    return {one.name: one.reserved_bytes or one.current_bytes for one in devices}


def _signed(value: int) -> str:
    return f"{'-' if value < 0 else '+'}{format_bytes(abs(value))}"
