"""What stayed when a piece of a program ended, who holds it, and what can be freed."""

import re
import tracemalloc
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from types import FunctionType, TracebackType
from typing import Any, Self
from weakref import ref

import keras

from kerasmem.backends.exhaustion import is_out_of_memory
from kerasmem.errors import ConfigError
from kerasmem.graph.values import nbytes
from kerasmem.memory.census import array_bytes, is_array, kind_name
from kerasmem.memory.growth.causes import causes
from kerasmem.memory.growth.freeing import Freed, free
from kerasmem.memory.growth.names import Link, names
from kerasmem.memory.growth.snapshot import OF_KERAS, Snapshot, take_snapshot
from kerasmem.records import Finding
from kerasmem.units import format_bytes

NO_NAME = "no name of the program: Keras, the framework or native code"
"""What holds an object that no variable leads to."""

_FRAMES = 16


@dataclass(frozen=True)
class Stayed:
    """Objects that stayed, and by which name the program holds them.

    Args:
        held_by: the name, such as `"search.trials[...].model"`; an index is left out
            where several objects differ in nothing else.
        where: `"a local of run()"`, or the module of the variable.
        kinds: numbers of objects by kind, those inside of them included.
        number: of objects that the name itself leads to.
        array_bytes: bytes of the arrays and weights that they hold.
        made_at: file and line that made the first of them; None where that is unknown.
        through: what is on the way to them: `"callback"`, `"closure"`, `"optimizer"`.
        is_own: whether a variable of the program holds them, not one of a library.
        models: number of models among them.
        arrays: number of arrays and tensors among them that are no object of Keras.
    """

    held_by: str
    where: str
    kinds: Mapping[str, int]
    number: int
    array_bytes: int
    made_at: str | None
    through: frozenset[str]
    is_own: bool
    models: int
    arrays: int


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
            raise ConfigError(
                "A scope needs a name. Expected: some text. Received: "
                f"name={name!r}. Next: name what runs in it."
            )
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
        self._before = take_snapshot()
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
        self._after = take_snapshot()
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
        before, after = self._snapshots()
        more = Counter(after.traces)
        more.subtract(before.traces)
        return {name: number for name, number in more.items() if number > 0}

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
        return sorted(after.children - before.children)

    @property
    def files(self) -> list[str]:
        """Paths of files that were opened and are still open."""
        before, after = self._snapshots()
        return sorted(after.files - before.files)

    @cached_property
    def stayed(self) -> list[Stayed]:
        """Objects that stayed by who holds them, those with most bytes first."""
        self._snapshots()
        living = {id(each): r for r in self._new if (each := r()) is not None}
        objects = [r() for r in living.values()]
        links = names(objects)
        groups: dict[tuple[str, str], _Group] = {}
        for one in objects:
            link = links.get(id(one))
            owner = _owner(link, living) if link is not None else None
            key = (_pattern(owner), owner.root.where) if owner else (NO_NAME, "")
            group = groups.setdefault(key, _Group())
            group.add(one, owner, is_counted=link is None or not _in_array(link))
            first = owner.object if owner else one
            group.made_at = group.made_at or self._made_at.get(id(living[id(first)]))
        stayed = [group.stayed(where) for (_, where), group in groups.items()]
        return sorted(stayed, key=lambda each: (-each.array_bytes, each.held_by))

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
            *(f"{name} {_signed(size)}" for name, size in self.device_bytes.items()),
            *(f"{n} more traces of {name}" for name, n in self.traces.items()),
            *([f"{len(self.graphs)} graphs of the framework"] if self.graphs else []),
            *(f"thread {name!r}" for name in self.threads),
            *(f"child process {number}" for number in self.children),
            *(f"open file {path}" for path in self.files),
        ]
        return "\n".join(
            [f"{self.name}: {', '.join(figures)}", *map(_line, self.stayed)]
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


class _Group:
    """Objects that one name holds."""

    def __init__(self) -> None:
        self._owners: dict[int, Link] = {}
        self._kinds: Counter[str] = Counter()
        self._bytes = self._models = self._arrays = 0
        self.made_at: str | None = None

    def add(self, one: Any, owner: Link | None, *, is_counted: bool) -> None:
        if owner is not None:
            self._owners.setdefault(id(owner.object), owner)
        self._kinds[kind_name(type(one))] += 1
        self._models += isinstance(one, keras.Model)
        self._arrays += not isinstance(one, OF_KERAS)
        if is_counted:
            self._bytes += _size(one)

    def stayed(self, where: str) -> Stayed:
        owners = list(self._owners.values())
        text = NO_NAME
        if owners:
            text = str(owners[0]) if len(owners) == 1 else _pattern(owners[0])
        kinds = dict(self._kinds.most_common())
        number = len(owners) or sum(kinds.values())
        through = {w for link in owners for w in _through(link)}
        return Stayed(
            held_by=text,
            where=where,
            kinds=kinds,
            number=number,
            array_bytes=self._bytes,
            made_at=self.made_at,
            through=frozenset(through),
            is_own=bool(owners) and owners[0].root.is_own,
            models=self._models,
            arrays=self._arrays,
        )


def _line(one: Stayed) -> str:
    kinds = ", ".join(f"{number} {kind}" for kind, number in one.kinds.items())
    where = f" ({one.where})" if one.where else ""
    made = f", made at {one.made_at}" if one.made_at else ""
    return f"  {format_bytes(one.array_bytes):>10}  {one.held_by}{where}: {kinds}{made}"


def _owner(link: Link, new: Mapping[int, Any]) -> Link:
    """Return the first new object on the way to one; an array in a callback is one."""
    links = link.chain()
    first = next(n for n, each in enumerate(links) if id(each.object) in new)
    is_callback = isinstance(links[first].object, keras.callbacks.Callback)
    below = (isinstance(each.object, OF_KERAS) for each in links[first + 1 :])
    return link if is_callback and not any(below) else links[first]


_WAYS = (
    ("callback", keras.callbacks.Callback),
    ("closure", FunctionType),
    ("optimizer", keras.optimizers.Optimizer),
)


def _through(link: Link) -> Iterator[str]:
    for each in link.chain():
        for name, kind in _WAYS:
            if isinstance(each.object, kind):
                yield name


def _in_array(link: Link) -> bool:
    """Return whether another array or variable is on the way: its bytes count once."""
    above = (each.object for each in link.chain()[:-1])
    return any(isinstance(one, keras.Variable) or _size(one) for one in above)


def _size(one: Any) -> int:
    if isinstance(one, keras.Variable):
        return nbytes(one)
    return array_bytes(one) if is_array(one) else 0


def _pattern(link: Link) -> str:
    return re.sub(r"\[\d+\]", "[...]", str(link))


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
