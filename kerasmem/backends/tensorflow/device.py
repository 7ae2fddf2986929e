"""TensorFlow devices: memory, failed allocations and settings."""

import functools
import os
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any

import tensorflow as tf
from google.protobuf.message import DecodeError
from tensorflow.core.protobuf import bfc_memory_map_pb2
from tensorflow.python.eager import context

from kerasmem.backends.device import (
    BFC,
    CUDA_MALLOC_ASYNC,
    DeviceBackend,
    DeviceSettings,
    InForce,
    Settings,
    StepOptions,
)
from kerasmem.backends.exhaustion import PoolState, RefusalLog
from kerasmem.backends.patching import call_before
from kerasmem.backends.tensorflow import gradient_registry
from kerasmem.records import DeviceReading
from kerasmem.types import Model, Tensors
from kerasmem.units import MIB

_TRAINING_JOBS = ("chief", "worker")
_DUMP_PREFIX = "TF_BFC_MEMORY_DUMP"
_USES_BFC = "TF_CPU_ALLOCATOR_USE_BFC"
_CPU_LIMIT, _USUAL_LIMIT = "TF_CPU_BFC_MEM_LIMIT_IN_MB", 64 * 1024
_ALLOCATOR = "TF_GPU_ALLOCATOR"
_GROWTH = "TF_FORCE_GPU_ALLOW_GROWTH"
_ASYNC_POOL = "TF_CUDA_MALLOC_ASYNC_SUPPORTED_PREALLOC"


class TensorFlowSettings(DeviceSettings):
    """Settings in `tf.config` and in the environment variables of TensorFlow."""

    def started(self) -> bool:
        """Return whether TensorFlow has initialized its devices."""
        # Private: public functions reveal this only by failing to change a setting.
        return context.context()._context_handle is not None

    def cards(self, shown: int) -> int:
        """Return the number of GPUs."""
        return len(_gpus())

    def visible(self, shown: int) -> tuple[int, ...]:
        """Return the indices of the visible GPUs."""
        visible = tf.config.get_visible_devices("GPU")
        return tuple(n for n, gpu in enumerate(_gpus()) if gpu in visible)

    def allocator(self) -> str:
        """Return the allocator of a GPU."""
        return os.environ.get(_ALLOCATOR) or BFC

    def apply(self, wanted: Settings, totals: Mapping[int, int]) -> None:
        """Apply the settings."""
        if wanted.allocator is not None:
            _set_allocator(wanted.allocator)
        if wanted.growth is not None:
            _set_growth(growth=wanted.growth, allocator=self.allocator())
        if wanted.devices is not None:
            gpus = [gpu for n, gpu in enumerate(_gpus()) if n in wanted.devices]
            tf.config.set_visible_devices(gpus, "GPU")
        if wanted.limit_bytes is not None:
            for gpu in tf.config.get_visible_devices("GPU"):
                _set_limit(gpu, wanted.limit_bytes)

    def in_force(self, card: int, total_bytes: int | None) -> InForce:
        """Return the current settings of a GPU."""
        gpu = _gpus()[card]
        parts = tf.config.get_logical_device_configuration(gpu) or ()
        limits = [part.memory_limit for part in parts if part.memory_limit is not None]
        growth = os.environ.get(_GROWTH)
        return InForce(
            limit_bytes=int(sum(limits) * MIB) if limits else None,
            growth=(
                growth == "true"
                if growth in {"true", "false"}
                else bool(tf.config.experimental.get_memory_growth(gpu))
            ),
            allocator=self.allocator(),
        )


def _gpus() -> list[Any]:
    return tf.config.list_physical_devices("GPU")


def _set_allocator(allocator: str) -> None:
    if allocator == BFC:
        os.environ.pop(_ALLOCATOR, None)
    else:
        os.environ[_ALLOCATOR] = allocator


def _set_growth(*, growth: bool, allocator: str) -> None:
    # In the environment, because `set_memory_growth` rejects a GPU with a limit.
    os.environ[_GROWTH] = "true" if growth else "false"
    if growth:
        os.environ.pop(_ASYNC_POOL, None)
    elif allocator == CUDA_MALLOC_ASYNC:
        os.environ[_ASYNC_POOL] = "-1"  # the size that BFC would use


def _set_limit(gpu: Any, limit_bytes: int) -> None:
    limit = tf.config.LogicalDeviceConfiguration(memory_limit=limit_bytes // MIB)
    tf.config.set_logical_device_configuration(gpu, [limit])


class TensorFlowOptions(StepOptions):
    """Options of a TensorFlow training step."""

    graph_passes = {  # noqa: RUF012 - never changed
        "layout optimizer": "layout_optimizer",
        "constant folding": "constant_folding",
    }

    def leave_out(self, graph_pass: str) -> None:
        """Disable a graph pass in this process."""
        name = self.graph_passes[graph_pass]
        tf.config.optimizer.set_experimental_options({name: False})

    def data_parallel(self) -> AbstractContextManager[Any]:
        """Return a context for building a data-parallel model on all devices."""
        kind = "GPU" if tf.config.list_logical_devices("GPU") else "CPU"
        names = [device.name for device in tf.config.list_logical_devices(kind)]
        return tf.distribute.MirroredStrategy(names).scope()

    def repeated(self, batch: Tensors) -> Any:
        """Return an endless dataset of one batch.

        For a generator, Keras would prefetch copies, which the allocator would count.
        """
        return tf.data.Dataset.from_tensors(batch).repeat()


class TensorFlowDevice(DeviceBackend):
    """TensorFlow devices."""

    copies_arrays = True
    step_options = TensorFlowOptions
    settings = TensorFlowSettings

    def device_memory(self) -> tuple[DeviceReading, ...]:
        """Return a reading per GPU, or of the CPU allocator without GPUs."""
        return tuple(_reading(device) for device in _counted_devices())

    def free_caches(self) -> None:
        """Hold graphs only weakly in the gradient registry."""
        gradient_registry.release_graphs()

    def release_graphs(self) -> None:
        """Hold graphs only weakly in the gradient registry."""
        gradient_registry.release_graphs()

    def orphaned_graphs(self, objects: Iterable[Any]) -> dict[int, int]:
        """Return the graphs that only the gradient registry refers to."""
        return gradient_registry.orphaned_graphs(objects)

    def reset_device_peak(self) -> bool:
        """Reset all peaks to the current use. Return False if no device is counted."""
        for device in _counted_devices():
            tf.config.experimental.reset_memory_stats(device)
        return bool(_counted_devices())

    def observe_peak_resets(self, observer: Callable[[], None]) -> Callable[[], None]:
        """Call `observer()` before any peak reset, and return the undo function."""
        return call_before(tf.config.experimental, "reset_memory_stats", observer)

    def why_no_device_memory(self) -> str:
        """Return the reason for missing device values."""
        return (
            "TensorFlow's CPU allocator does not count memory in this process, so "
            "device values are missing. Set TF_CPU_ALLOCATOR_USE_BFC=1 before "
            "TensorFlow is imported."
        )

    def input_bytes(self) -> int | None:
        """Return the CPU allocator's bytes in use while a GPU trains."""
        if not tf.config.list_logical_devices("GPU"):
            return None
        try:
            return tf.config.experimental.get_memory_info("CPU:0")["current"]
        except ValueError:  # the CPU allocator does not count
            return None

    @contextmanager
    def refusals(self) -> Iterator[RefusalLog]:
        """Return a context that logs failed allocations.

        If the environment variable `TF_BFC_MEMORY_DUMP` has a path prefix, TensorFlow
        writes a file with all chunks for each failed allocation. It reads the variable
        at that time, so there is no cost without a failure. If the user has set the
        variable, nothing is logged.
        """
        if os.environ.get(_DUMP_PREFIX):
            yield RefusalLog()
            return
        with tempfile.TemporaryDirectory(prefix="kerasmem-refusals-") as folder:
            os.environ[_DUMP_PREFIX] = str(Path(folder, "dump"))
            try:
                yield _Dumps(Path(folder))
            finally:
                os.environ.pop(_DUMP_PREFIX, None)

    def cpu_limit_bytes(self) -> int | None:
        """Return the limit of the CPU allocator in bytes, or None."""
        if os.environ.get(_USES_BFC, "").lower() not in {"1", "true"}:
            return None
        return int(os.environ.get(_CPU_LIMIT) or _USUAL_LIMIT) * MIB

    def cuda_ordinals(self) -> dict[str, int]:
        """Return the CUDA index of the card of each logical GPU."""
        visible = tf.config.get_visible_devices("GPU")
        ordinals = [
            int(card.name.rpartition(":")[2])
            for card in visible
            for _ in tf.config.get_logical_device_configuration(card) or (None,)
        ]
        return dict(zip(_names("GPU"), ordinals, strict=True))

    def processes(self, model: Model) -> tuple[int, int]:
        """Return the index of this process and the number of training processes."""
        strategy = model.distribute_strategy
        resolver = (
            strategy.cluster_resolver
            or tf.distribute.cluster_resolver.TFConfigClusterResolver()
        )
        cluster = resolver.cluster_spec().as_dict()
        tasks = [
            (job, index)
            for job in _TRAINING_JOBS
            for index in range(len(cluster.get(job, ())))
        ]
        task = (resolver.task_type, resolver.task_id)
        return (tasks.index(task), len(tasks)) if task in tasks else (0, 1)


def _names(kind: str) -> tuple[str, ...]:
    devices = tf.config.list_logical_devices(kind)
    return tuple(device.name.removeprefix("/device:") for device in devices)


def _counted_devices() -> tuple[str, ...]:
    gpus = _names("GPU")
    if gpus:
        return gpus
    try:
        tf.config.experimental.get_memory_info("CPU:0")
    except ValueError:  # see `TensorFlowDevice.input_bytes`
        return ()
    return _names("CPU")


def _reading(device: str) -> DeviceReading:
    figures = tf.config.experimental.get_memory_info(device)
    on_cpu = device.startswith("CPU")
    return DeviceReading(
        name=device,
        current_bytes=figures["current"],
        peak_bytes=figures["peak"],
        peak_was_reset=True,
        complete=not on_cpu or _counts_small_requests(),
        # All logical CPU devices share one allocator and return its values.
        shares_with="CPU:0" if on_cpu and device != "CPU:0" else None,
    )


@functools.cache
def _counts_small_requests() -> bool:
    # Tested, because the environment variable has an effect only if it was set before
    # the import of TensorFlow.
    before = tf.config.experimental.get_memory_info("CPU:0")["current"]
    with tf.device("CPU:0"):
        small = tf.fill([100], 1.0)
    after = tf.config.experimental.get_memory_info("CPU:0")["current"]
    return after - before >= small.dtype.size * 100


class _Dumps(RefusalLog):
    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def fullest(self) -> PoolState | None:
        """Return the state with the most bytes in use, and delete its files."""
        files = sorted(self._folder.iterdir())
        states = [state for file in files if (state := _read_dump(file)) is not None]
        for file in files:
            file.unlink()
        return max(states, key=lambda state: state.in_use_bytes, default=None)


def _read_dump(file: Path) -> PoolState | None:
    dump = bfc_memory_map_pb2.MemoryDump()
    try:
        dump.ParseFromString(file.read_bytes())
    except DecodeError:  # the disk was full, or the file is incomplete
        return None
    sizes = [(chunk.size, chunk.in_use) for chunk in dump.chunk]
    return PoolState(
        in_use_bytes=sum(size for size, in_use in sizes if in_use),
        pool_bytes=sum(size for size, _ in sizes),
        largest_free_bytes=max(
            (size for size, is_used in sizes if not is_used), default=0
        ),
    )
