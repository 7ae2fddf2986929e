"""What TensorFlow tells of the memory in use, and of the processes that train."""

import functools
from collections.abc import Callable
from typing import Any

import tensorflow as tf

from kerasmem.backends.shadow import call_before
from kerasmem.records import DeviceReading

_TRAINING_JOBS = ("chief", "worker")


def device_memory() -> tuple[DeviceReading, ...]:
    """Return a reading per GPU, or of the CPU allocator where there is none."""
    return tuple(_reading(device) for device in _counted_devices())


def reset_device_peak() -> bool:
    """Set every peak to what is in use now; False if no device is counted."""
    for device in _counted_devices():
        tf.config.experimental.reset_memory_stats(device)
    return bool(_counted_devices())


def observe_peak_resets(observer: Callable[[], None]) -> Callable[[], None]:
    """Call `observer()` before anybody starts a new peak; return the undo."""
    return call_before(tf.config.experimental, "reset_memory_stats", observer)


def input_bytes() -> int | None:
    """Return what the CPU allocator has in use while a GPU trains."""
    if not tf.config.list_logical_devices("GPU"):
        return None
    try:
        return tf.config.experimental.get_memory_info("CPU:0")["current"]
    except ValueError:  # TensorFlow's way to say that this allocator does not count
        return None


def cuda_ordinals() -> dict[str, int]:
    """Return CUDA's number of the card below each logical GPU."""
    visible = tf.config.get_visible_devices("GPU")
    ordinals = [
        int(card.name.rpartition(":")[2])
        for card in visible
        for _ in tf.config.get_logical_device_configuration(card) or (None,)
    ]
    return dict(zip(_names("GPU"), ordinals, strict=True))


def processes(model: Any) -> tuple[int, int]:
    """Return the index of this process and the number that train together."""
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
    except ValueError:  # see `input_bytes`
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
        # All logical CPU devices of a process have one allocator, and each of them
        # answers with the figures of all.
        shares_with="CPU:0" if on_cpu and device != "CPU:0" else None,
    )


@functools.cache
def _counts_small_requests() -> bool:
    # Tried out, because the environment variable that switches the CPU allocator
    # counts only if it was set before TensorFlow was imported.
    before = tf.config.experimental.get_memory_info("CPU:0")["current"]
    with tf.device("CPU:0"):
        small = tf.fill([100], 1.0)
    after = tf.config.experimental.get_memory_info("CPU:0")["current"]
    return after - before >= small.dtype.size * 100
