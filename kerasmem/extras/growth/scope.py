"""Reports objects that stay in memory after a block, and frees caches."""

import gc
import multiprocessing
import threading
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import suppress
from functools import cache, cached_property
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
from kerasmem.extras.growth.stayed import OF_KERAS, Stayed, stayed
from kerasmem.memory.held_arrays import arrays_of, is_own
from kerasmem.memory.references import local_variables
from kerasmem.processes.host import resident_bytes
from kerasmem.records import Finding, own_allocators
from kerasmem.units import KIB, MIB, format_bytes

_T = TypeVar("_T")


class Freed(NamedTuple):
    """Bytes freed by `scope.free()`.

    Args:
        host_bytes: Int. Decrease of the resident memory of the process in bytes.
        device_bytes: Dict of int. Decrease of the bytes in use by device name.
    """

    host_bytes: int
    device_bytes: dict[str, int]


class Scope:
    """Memory growth of a `with` block: objects that stay, and their holders.

    Growth is measured from the creation of the scope. Without a `with` block,
    `update()` measures the growth so far. The cost is one scan of all objects at the
    beginning and one at the end, a few tenths of a second each. Holders are searched
    when `stayed` or `findings` is read.

    Args:
        name: String. Name of the scope in findings. Defaults to `"scope"`.

    Attributes:
        host_bytes: Growth of the resident memory of the process in bytes.
        free_heap_bytes: Freed bytes of `host_bytes` that the C library caches for
            reuse.
        device_bytes: Growth of the bytes in use by device name.
        traced: Name and number of new traces of each existing compiled function.
        traces: Number of new traces by function name.
        graphs: Bytes of variables of each new graph that only the framework holds.
        threads: Names of new threads that still run.
        files: Paths of new open files.

    Raises:
        ConfigError: If `name` is not a non-empty string, or if a figure is read before
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
            raise invalid("scope", "name", name, "a non-empty string")
        self.name = name
        self._before = _Snapshot(collected=False)

    def __getattr__(self, name: str) -> Any:
        """Raise `ConfigError` for a figure that is not measured yet."""
        if name not in Scope.__annotations__:
            raise AttributeError(f"{type(self).__name__!r} has no attribute {name!r}")
        raise ConfigError(
            f"The scope {self.name!r} has no figures yet. Expected: a scope that has "
            "ended. Received: a running scope. Next: leave its `with` block, or call "
            "update()."
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.update()

    def update(self) -> None:
        """Measure the growth so far. Called at the end of a `with` block."""
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
        """Process ids of new child processes that still run."""
        # Short-lived children have ended by now.
        return sorted(filter(_runs, self._children))

    @cached_property
    def stayed(self) -> list[Stayed]:
        """Objects that stay in memory, by holder, largest first."""
        return stayed(self._new)

    @property
    def findings(self) -> list[Finding]:
        """Known causes of the growth with a suggested fix each. May be empty."""
        return [
            Finding(kind, f"{text} (Scope {self.name!r}.)", 0, None, "scope")
            for kind, text in causes(self)
        ]

    def free(self) -> Freed:
        """Free the caches of Keras, the framework and the C library.

        Clears Keras's global state (`keras.utils.clear_session`) and collects garbage.
        Then frees the framework's caches of compiled programs and device memory, and
        unused pages of the C library's heap. Models held by a variable still work, and
        their steps are compiled again on the next call.

        Returns:
            A `Freed` tuple with the freed bytes of the host and of each device.
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
        """Return the growth as a text table.

        Returns:
            String with one line of figures and one line for each holder.
        """
        figures = [
            f"host {_signed(self.host_bytes)}",
            f"{format_bytes(self.free_heap_bytes)} of it free",
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
    """Memory, Keras objects, arrays and traces of the process at one moment.

    A snapshot takes about 0.2 seconds, and Python's garbage collection another 0.2
    seconds.

    With `collected=False`, only the youngest garbage is collected first. Other garbage
    counts as present.
    """

    def __init__(self, *, collected: bool) -> None:
        gc.collect(2 if collected else 1)
        objects = gc.get_objects()
        process, backend = psutil.Process(), backends.current()
        devices = own_allocators(backend.device_memory())
        self.device_bytes = {device.name: device.current_bytes for device in devices}
        self.host_bytes = resident_bytes()
        self.heap = c_heap() or CHeap(0, 0)
        # Keyed by identity, since a living object has only one weak reference.
        self.objects = {id(each): each for each in _references(objects)}
        self.traced = [*traced_functions(objects).values()]
        self.graphs = backend.orphaned_graphs(objects)
        self.threads = {t.ident or 0: t.name for t in threading.enumerate()}
        self.files = frozenset(file.path for file in process.open_files())
        # Not recursive: other children start their own children. The children of a fork
        # server are included, since this process requested them.
        children = {child.pid for child in process.children()}
        children |= {child.pid or 0 for child in multiprocessing.active_children()}
        self.children = frozenset(filter(_runs, children))


def _new(before: Mapping[int, _T], after: Mapping[int, _T]) -> list[_T]:
    return [value for key, value in after.items() if key not in before]


def _references(objects: list[Any]) -> Iterator["ref[Any]"]:
    is_kept = cache(lambda kind: issubclass(kind, OF_KERAS) and not is_own(kind))
    # The garbage collector does not track a plain dict of arrays in a local variable.
    local_values = [link.object for link in local_variables()]
    arrays = (
        x for x in arrays_of(objects + local_values) if not isinstance(x, OF_KERAS)
    )
    for each in chain((x for x in objects if is_kept(type(x))), arrays):
        with suppress(TypeError):  # a type without weak references
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


_MANY = 3
"""Number of graphs, or of models or arrays with one name, that counts as growth."""
_MANY_TRACES = 5
_LEAST_BYTES = 64 * KIB
_LEAST_FREE_BYTES = 64 * MIB
_LEAST_FREE_SHARE = 0.75
"""Minimum fraction of the growth, since XLA's first compilation keeps memory."""
_COPY_OF_WEIGHTS = ".best_weights[...]"


def causes(scope: Scope) -> Iterator[tuple[str, str]]:
    """Yield the kind and the message of each cause of growth in a finished scope."""
    for name, number in scope.traced:
        if number >= _MANY_TRACES:
            yield (
                "retracing",
                f"{name}() was traced {number} more times, and traces stay. Next: pad "
                "batches to one shape (drop_remainder=True); pass numbers as tensors.",
            )
    if len(scope.graphs) >= _MANY:
        yield (
            "graphs",
            f"TensorFlow's gradient registry keeps {len(scope.graphs)} graphs of "
            f"deleted models, with {format_bytes(sum(scope.graphs))} of "
            "variables. clear_session() does not remove them. Next: scope.free() after "
            "each model, or run each trial with km.memory.isolated().",
        )
    free_bytes = scope.free_heap_bytes
    if free_bytes >= max(_LEAST_FREE_BYTES, _LEAST_FREE_SHARE * scope.host_bytes):
        yield (
            "free heap",
            f"Resident memory rose by {format_bytes(scope.host_bytes)}, including "
            f"{format_bytes(free_bytes)} of free memory that the C library caches. "
            "Next: del model and gc.collect(), or scope.free() after each model.",
        )
    for one in scope.stayed:
        yield from _models(one) if one.models else _arrays(one)
    helpers = [f"thread {name!r}" for name in scope.threads]
    helpers += [f"child process {number}" for number in scope.children]
    if helpers:
        yield (
            "workers",
            f"Workers still run: {', '.join(helpers[:_MANY])}. Workers of a dataset "
            "run until all batches are read. Next: read all batches, or use workers=1.",
        )


def _models(one: Stayed) -> Iterator[tuple[str, str]]:
    other = one.array_bytes - one.weight_bytes
    arrays = f" and {format_bytes(other)} of other arrays"
    if one.models >= _MANY and one.is_own:
        yield (
            "models",
            f"{one.models} models stayed with {format_bytes(one.weight_bytes)} of "
            f"weights{arrays if other >= _LEAST_BYTES else ''}: {one} holds "
            "them. Next: keep only scores and files, or run each trial with "
            "km.memory.isolated().",
        )
    if one.is_own and "closure" in one.through:
        yield (
            "closure",
            f"A function in memory holds a model in its closure: {one}. "
            "Next: pass the model as an argument, or delete the function.",
        )


def _arrays(one: Stayed) -> Iterator[tuple[str, str]]:
    size = format_bytes(one.array_bytes)
    # EarlyStopping keeps only one copy of the weights.
    is_copy = one.held_by.endswith(_COPY_OF_WEIGHTS)
    if "callback" in one.through and one.arrays >= _MANY and not is_copy:
        yield (
            "arrays in a callback",
            f"A callback keeps {one.arrays} arrays, {size}: {one}. Next: keep "
            "numbers, float(value), or write the arrays to a file.",
        )
    if "optimizer" in one.through and one.array_bytes >= _LEAST_BYTES:
        yield (
            "optimizer",
            f"An optimizer holds the variables of its model, {size}: {one}. Next: "
            "create an optimizer for each model, or keep its get_config().",
        )
