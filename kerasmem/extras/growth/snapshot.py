"""What a process holds at one moment: memory, objects of Keras, arrays, traces."""

import gc
import multiprocessing
import threading
import weakref
from collections.abc import Iterator, Mapping
from contextlib import suppress
from itertools import compress
from typing import Any, TypeVar

import keras
import psutil

from kerasmem import backends
from kerasmem.backends.heap import CHeap, c_heap
from kerasmem.backends.steps import traced_functions
from kerasmem.extras.growth.names import local_variables
from kerasmem.memory.held_arrays import arrays_of
from kerasmem.memory.kinds import KindTable, is_own
from kerasmem.processes.host import resident_bytes
from kerasmem.records import own_allocators

_T = TypeVar("_T")
OF_KERAS = (
    keras.Model,
    keras.layers.Layer,
    keras.Variable,
    keras.optimizers.Optimizer,
    keras.callbacks.Callback,
    keras.metrics.Metric,
    keras.KerasTensor,
)
"""Kinds of objects that Keras makes."""


class Snapshot:
    """What there is at one moment.

    Takes about two tenths of a second, and Python's own collection as much again.

    Args:
        collected: whether all garbage is collected before, or the youngest alone: what
            is garbage then may die later, and counts as there.

    Attributes:
        device_bytes: bytes in use by device.
        host_bytes: resident bytes of the process.
        heap: what the C library's heap has.
        objects: references to Keras's objects and arrays, by their own identity: an
            object has one reference, as long as somebody keeps it.
        traced: compiled functions that live.
        graphs: bytes of variables by identity of each graph that no function needs.
        threads: names by identity.
        files: paths of open files.
        children: process ids of child processes, and of those of a fork server.
    """

    def __init__(self, *, collected: bool) -> None:
        gc.collect(2 if collected else 1)
        objects = gc.get_objects()
        process, backend = psutil.Process(), backends.current()
        devices = own_allocators(backend.device_memory())
        self.device_bytes = {device.name: device.current_bytes for device in devices}
        self.host_bytes = resident_bytes()
        self.heap = c_heap() or CHeap(0, 0)
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
        self.children = frozenset(filter(runs, children))

    def new_traces(self, before: "Snapshot") -> list[tuple[str, int]]:
        """Return name and new traces of each function that was traced since.

        Args:
            before: an earlier snapshot of the same process.
        """
        known = {id(one.function): one.traces for one in before.traced}
        more = ((t.name, t.traces - known.get(id(t.function), 0)) for t in self.traced)
        return [(name, number) for name, number in more if number > 0]


def new(before: Mapping[int, _T], after: Mapping[int, _T]) -> list[_T]:
    """Return the values of a mapping whose keys an earlier one has not."""
    return [value for key, value in after.items() if key not in before]


def runs(number: int) -> bool:
    """Return whether a process has not ended; one may wait to be asked how it did."""
    try:
        return psutil.Process(number).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def _references(objects: list[Any]) -> Iterator["weakref.ref[Any]"]:
    kinds = KindTable(lambda kind: issubclass(kind, OF_KERAS) and not is_own(kind))
    yield from map(
        weakref.ref, compress(objects, map(kinds.__getitem__, map(type, objects)))
    )
    # A plain dict of arrays that a local variable holds is unknown to the collector.
    held = [link.object for link in local_variables()]
    for array in arrays_of(objects + held):
        if not isinstance(array, OF_KERAS):
            with suppress(TypeError):  # a kind that cannot be referred to weakly
                yield weakref.ref(array)
