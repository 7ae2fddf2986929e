"""What a process holds at one moment: memory, objects of Keras, arrays, traces."""

import gc
import threading
import weakref
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import keras
import psutil

from kerasmem import backends
from kerasmem.backends.steps import traces_by_name
from kerasmem.memory.census import arrays_of, is_own
from kerasmem.memory.growth.names import local_variables
from kerasmem.processes.host import resident_bytes
from kerasmem.records import own_allocators

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


@dataclass(frozen=True)
class Snapshot:
    """What there is at one moment.

    Args:
        device_bytes: bytes in use by device.
        host_bytes: resident bytes of the process.
        objects: Keras's objects and arrays by identity, without holding them.
        traces: times that the compiled functions which live were traced, by name.
        graphs: bytes of variables by identity of each graph that no function needs.
        threads: names by identity.
        files: paths of open files.
        children: process ids of child processes.
    """

    device_bytes: Mapping[str, int]
    host_bytes: int
    objects: Mapping[int, "weakref.ref[Any]"]
    traces: Mapping[str, int]
    graphs: Mapping[int, int]
    threads: Mapping[int, str]
    files: frozenset[str]
    children: frozenset[int]

    def new(self, later: "Snapshot") -> list["weakref.ref[Any]"]:
        """Return what a later snapshot has and this one had not, as far as it lives.

        Args:
            later: one of the same process.
        """

        def was_there(key: int, reference: "weakref.ref[Any]") -> bool:
            before = self.objects.get(key)
            return before is not None and before() is reference()

        return [
            reference
            for key, reference in later.objects.items()
            if reference() is not None and not was_there(key, reference)
        ]


def take_snapshot() -> Snapshot:
    """Return what the process holds now, garbage collected.

    Takes some tenths of a second, mostly Python's own collection.
    """
    gc.collect()
    objects = gc.get_objects()
    process = psutil.Process()
    return Snapshot(
        device_bytes={
            device.name: device.current_bytes
            for device in own_allocators(backends.current().device_memory())
        },
        host_bytes=resident_bytes(),
        objects=dict(_references(objects)),
        traces=traces_by_name(objects),
        graphs=backends.current().orphaned_graphs(objects),
        threads={t.ident or 0: t.name for t in threading.enumerate()},
        files=frozenset(file.path for file in process.open_files()),
        children=frozenset(child.pid for child in process.children(recursive=True)),
    )


def _references(objects: list[Any]) -> Iterator[tuple[int, "weakref.ref[Any]"]]:
    kinds: dict[type, bool] = {}
    for each in objects:
        kind = type(each)
        if kind not in kinds:
            kinds[kind] = issubclass(kind, OF_KERAS) and not is_own(kind)
        if kinds[kind]:
            yield id(each), weakref.ref(each)
    # A plain dict of arrays that a local variable holds is unknown to the collector.
    held = [link.object for link in local_variables()]
    for array in arrays_of(objects + held):
        if isinstance(array, OF_KERAS):
            continue
        try:
            yield id(array), weakref.ref(array)
        except TypeError:  # a kind that cannot be referred to weakly
            continue
