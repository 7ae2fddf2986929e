"""What stayed when a piece of a program ended, who holds it, and what can be freed."""

import gc
import tracemalloc
from collections import Counter
from functools import cached_property
from pathlib import Path
from types import TracebackType
from typing import Any, NamedTuple, Self
from weakref import ref

import keras

from kerasmem import backends
from kerasmem.backends.exhaustion import is_out_of_memory
from kerasmem.backends.heap import trim_heap
from kerasmem.checks import invalid
from kerasmem.errors import ConfigError
from kerasmem.extras.growth.causes import causes
from kerasmem.extras.growth.snapshot import Snapshot, new, runs
from kerasmem.extras.growth.stayed import Stayed, stayed
from kerasmem.processes.host import resident_bytes
from kerasmem.records import Finding, own_allocators
from kerasmem.units import format_bytes

_FRAMES = 16


class Freed(NamedTuple):
    """What was given back, bytes.

    Args:
        host_bytes: resident bytes of the process, before less after.
        device_bytes: bytes in use by device, before less after.
    """

    host_bytes: int
    device_bytes: dict[str, int]


class Scope:
    """Memory growth of a `with` block: what it leaves, and who holds that.

    Two looks at all objects, at the begin and at the end, are what it costs: some
    tenths of a second. Who holds what stayed is found out when it is asked for.

    Args:
        name: what findings call it.
        lines: whether to record which line makes an object, as `tracemalloc` does:
            the program runs slower and takes more memory meanwhile.

    Attributes:
        host_bytes: resident bytes of the process, after less before.
        free_heap_bytes: of `host_bytes` those that the C library keeps: freed, to be
            used again.
        device_bytes: bytes in use by device, after less before.
        traced: name and new traces of each compiled function that lives.
        traces: new traces of compiled functions that live, by the functions' names.
        graphs: bytes of the variables of each new graph that only the framework holds.
        threads: names of threads that were begun and still run.
        files: paths of files that were opened and are still open.
        out_of_memory: the error's text if memory ran out, else None.

    Raises:
        ConfigError: if `name` is no text or empty; if a figure is asked for before the
            scope has ended.

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
    traces: dict[str, int]
    graphs: list[int]
    threads: list[str]
    files: list[str]
    _before: Snapshot
    _children: frozenset[int]
    _new: list[ref[Any]]
    _function = "scope"

    def __init__(self, name: str = "scope", *, lines: bool = False) -> None:
        if not isinstance(name, str) or not name:
            raise invalid(self._function, "name", name, "a text that is not empty")
        self.name = name
        self.out_of_memory: str | None = None
        self._lines = lines
        self._made_at: dict[int, str] = {}

    def __getattr__(self, name: str) -> Any:
        """Raise the error for a figure that is not there yet, or for no attribute."""
        if name not in Scope.__annotations__:
            raise AttributeError(f"{type(self).__name__!r} has no attribute {name!r}")
        raise ConfigError(
            f"The scope {self.name!r} has no figures yet. Expected: it has ended. "
            "Received: one that runs, or was never begun. Next: leave its `with` "
            "block, or call update()."
        )

    def __enter__(self) -> Self:
        self._stop_tracing = self._lines and not tracemalloc.is_tracing()
        if self._stop_tracing:
            tracemalloc.start(_FRAMES)
        self._before = Snapshot(collected=False)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if error is not None and is_out_of_memory(error):
            self.out_of_memory = str(error)
        self.update()
        if self._stop_tracing:
            tracemalloc.stop()

    def update(self) -> None:
        """Look again at what is there now; a scope does it when it ends.

        Raises:
            ConfigError: if the scope has not begun.
        """
        self._compare(self._before, Snapshot(collected=True))
        if tracemalloc.is_tracing():
            living = (each for r in self._new if (each := r()) is not None)
            lines = ((id(each), _line_of(each)) for each in living)
            self._made_at = {key: line for key, line in lines if line}

    def _compare(self, before: Snapshot, after: Snapshot) -> None:
        self._new = new(before.objects, after.objects)
        self.__dict__.pop("stayed", None)
        self.host_bytes = after.host_bytes - before.host_bytes
        used = after.heap.used_bytes - before.heap.used_bytes
        free = min(self.host_bytes - used, self.host_bytes, after.heap.free_bytes)
        self.free_heap_bytes = max(0, free)
        self.device_bytes = {
            name: value - before.device_bytes.get(name, 0)
            for name, value in after.device_bytes.items()
        }
        self.traced = after.new_traces(before)
        traces: Counter[str] = Counter()
        for name, number in self.traced:
            traces[name] += number
        self.traces = dict(traces)
        self.graphs = new(before.graphs, after.graphs)
        self.threads = sorted(new(before.threads, after.threads))
        self.files = sorted(after.files - before.files)
        self._children = after.children - before.children

    @property
    def children(self) -> list[int]:
        """Process ids of child processes that were begun and still run."""
        # One that was short-lived has ended by now.
        return sorted(filter(runs, self._children))

    @cached_property
    def stayed(self) -> list[Stayed]:
        """Objects that stayed by who holds them, those with most bytes first."""
        return stayed(self._new, self._made_at)

    @property
    def models(self) -> list[keras.Model]:
        """New models that live."""
        living = (reference() for reference in self._new)
        return [each for each in living if isinstance(each, keras.Model)]

    @property
    def findings(self) -> list[Finding]:
        """What is wrong, in words with the remedy; empty for what is usual."""
        return [
            Finding(kind, f"{text} (Scope {self.name!r}.)", 0, None, "scope")
            for kind, text in causes(self)
        ]

    def free(self) -> Freed:
        """Give back what Keras, the framework and the C library can give back.

        Keras's global state (`keras.utils.clear_session`), what the garbage collector
        finds, the framework's caches of compiled programs and of device memory, and
        free pages of the C library's heap. Models that a variable holds stay and work
        on; what was compiled for them is compiled again when they are called.

        Returns:
            The bytes given back, of the host and by device.
        """
        host, devices = resident_bytes(), _device_bytes()
        keras.utils.clear_session()
        gc.collect()
        backends.current().free_caches()
        gc.collect()
        trim_heap()
        now = _device_bytes()
        return Freed(
            host - resident_bytes(),
            {name: size - now.get(name, 0) for name, size in devices.items()},
        )

    def table(self) -> str:
        """Return what stayed as text: who holds it, kinds, bytes and lines.

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
        head = f"{self.name}: {', '.join(figures)}"
        return "\n".join([head, *(f"  {one.line}" for one in self.stayed)])


class GrowthWatch(Scope):
    """Memory growth of a process: a scope without an end.

    It begins at once. `update()` looks at what is there, and `stop()` looks for the
    last time.

    Args:
        name: what findings call it.
        lines: whether to record which line makes an object, as `tracemalloc` does: the
            program runs slower and takes more memory meanwhile.

    Raises:
        ConfigError: if `name` is no text or empty.

    Example:
        >>> import kerasmem as km
        >>> watch = km.memory.watch_growth()
        >>> watch.findings
        []
    """

    _function = "watch_growth"

    def __init__(self, name: str = "process", *, lines: bool = False) -> None:
        super().__init__(name, lines=lines)
        self.__enter__()
        self._compare(self._before, self._before)

    def stop(self) -> None:
        """Look for the last time."""
        self.__exit__(None, None, None)


def _device_bytes() -> dict[str, int]:
    devices = own_allocators(backends.current().device_memory())
    return {one.name: one.reserved_bytes or one.current_bytes for one in devices}


def _line_of(one: Any) -> str | None:
    """Return the latest line outside of installed packages that led to an object."""
    trace = tracemalloc.get_object_traceback(one)
    for frame in reversed(trace or ()):
        if "site-packages" not in frame.filename and frame.filename[:1] != "<":
            return f"{Path(frame.filename).name}:{frame.lineno}"
    return None


def _signed(value: int) -> str:
    return f"{'-' if value < 0 else '+'}{format_bytes(abs(value))}"
