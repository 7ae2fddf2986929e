"""What stayed when a piece of a program ended, who holds it, and what can be freed."""

import tracemalloc
from collections import Counter
from functools import cached_property
from pathlib import Path
from types import TracebackType
from typing import Any, Self
from weakref import ref

import keras

from kerasmem.backends.exhaustion import is_out_of_memory
from kerasmem.checks import invalid
from kerasmem.errors import ConfigError
from kerasmem.extras.growth.causes import causes
from kerasmem.extras.growth.freeing import Freed, free
from kerasmem.extras.growth.snapshot import Snapshot, runs, take_snapshot
from kerasmem.extras.growth.stayed import Stayed, stayed
from kerasmem.records import Finding
from kerasmem.units import format_bytes

_FRAMES = 16


class Scope:
    """Memory growth of a `with` block: what it leaves, and who holds that.

    Two looks at all objects, at the begin and at the end, are what it costs: some
    tenths of a second. Who holds what stayed is found out when it is asked for.

    Args:
        name: what findings call it.
        lines: whether to record which line makes an object, as `tracemalloc` does:
            the program runs slower and takes more memory meanwhile.

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

    def __init__(self, name: str = "scope", *, lines: bool = False) -> None:
        if not isinstance(name, str) or not name:
            raise invalid("growth", "name", name, "a text of at least one character")
        self.name = name
        self._lines = lines
        self._before: Snapshot | None = None
        self._after: Snapshot | None = None
        self._new: list[ref[Any]] = []
        self.out_of_memory: str | None = None
        self._made_at: dict[int, str] = {}

    def __enter__(self) -> Self:
        self._stop_tracing = self._lines and not tracemalloc.is_tracing()
        if self._stop_tracing:
            tracemalloc.start(_FRAMES)
        self._before = take_snapshot(collected=False)
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
        if self._before is None:
            raise self._not_ended()
        self._after = take_snapshot(collected=True)
        self._new = self._before.new(self._after)
        self.__dict__.pop("stayed", None)
        if tracemalloc.is_tracing():
            lines = {id(reference): _line_of(reference()) for reference in self._new}
            self._made_at = {key: line for key, line in lines.items() if line}

    @property
    def host_bytes(self) -> int:
        """Resident bytes of the process, after less before."""
        before, after = self._snapshots()
        return after.host_bytes - before.host_bytes

    @property
    def free_heap_bytes(self) -> int:
        """Of `host_bytes` those that the C library keeps: freed, to be used again."""
        before, after = self._snapshots()
        if before.heap is None or after.heap is None:
            return 0
        grown = self.host_bytes - (after.heap.used_bytes - before.heap.used_bytes)
        return max(0, min(grown, self.host_bytes, after.heap.free_bytes))

    @property
    def device_bytes(self) -> dict[str, int]:
        """Bytes in use by device, after less before."""
        before, after = self._snapshots()
        return {
            name: value - before.device_bytes.get(name, 0)
            for name, value in after.device_bytes.items()
        }

    @property
    def traces(self) -> dict[str, int]:
        """New traces of compiled functions that live, by the functions' names."""
        more: Counter[str] = Counter()
        for name, number in self.traced:
            more[name] += number
        return dict(more)

    @property
    def traced(self) -> list[tuple[str, int]]:
        """Name and new traces of each compiled function that lives."""
        before, after = self._snapshots()
        return before.new_traces(after)

    @property
    def graphs(self) -> list[int]:
        """Bytes of the variables of each new graph that only the framework holds."""
        before, after = self._snapshots()
        return [size for key, size in after.graphs.items() if key not in before.graphs]

    @property
    def threads(self) -> list[str]:
        """Names of threads that were begun and still run."""
        before, after = self._snapshots()
        return sorted(
            name for key, name in after.threads.items() if key not in before.threads
        )

    @property
    def children(self) -> list[int]:
        """Process ids of child processes that were begun and still run."""
        before, after = self._snapshots()
        # One that was short-lived has ended by now.
        return sorted(filter(runs, after.children - before.children))

    @property
    def files(self) -> list[str]:
        """Paths of files that were opened and are still open."""
        before, after = self._snapshots()
        return sorted(after.files - before.files)

    @cached_property
    def stayed(self) -> list[Stayed]:
        """Objects that stayed by who holds them, those with most bytes first."""
        self._snapshots()
        living = [r for r in self._new if r() is not None]
        return stayed(living, self._made_at)

    @property
    def models(self) -> list[keras.Model]:
        """New models that live."""
        self._snapshots()
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

        What a variable of the program holds stays: Python does not free it.

        Returns:
            The bytes given back, of the host and by device.
        """
        return free()

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
        return "\n".join(
            [
                f"{self.name}: {', '.join(figures)}",
                *(f"  {one.line}" for one in self.stayed),
            ]
        )

    def _snapshots(self) -> tuple[Snapshot, Snapshot]:
        if self._before is None or self._after is None:
            raise self._not_ended()
        return self._before, self._after

    def _not_ended(self) -> ConfigError:
        return ConfigError(
            f"The scope {self.name!r} has no figures yet. Expected: it has ended. "
            "Received: one that runs, or was never begun. Next: leave its `with` "
            "block, or call update()."
        )


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

    def __init__(self, name: str = "process", *, lines: bool = False) -> None:
        super().__init__(name, lines=lines)
        self.__enter__()
        self._after = self._before

    def stop(self) -> None:
        """Look for the last time."""
        self.__exit__(None, None, None)


def _line_of(one: Any) -> str | None:
    """Return the latest line outside of installed packages that led to an object."""
    trace = tracemalloc.get_object_traceback(one)
    if trace is None:
        return None
    frames = [f for f in trace if "site-packages" not in f.filename]
    frames = [f for f in frames if not f.filename.startswith("<")]
    return f"{Path(frames[-1].filename).name}:{frames[-1].lineno}" if frames else None


def _signed(value: int) -> str:
    return f"{'-' if value < 0 else '+'}{format_bytes(abs(value))}"
