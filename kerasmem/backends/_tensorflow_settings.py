"""How TensorFlow takes its cards and their memory."""

import os
from collections.abc import Mapping
from typing import Any

import tensorflow as tf
from tensorflow.python.eager import context

from kerasmem.backends.settings import (
    BFC,
    CUDA_MALLOC_ASYNC,
    NO_HARD_LIMIT,
    InForce,
    Settings,
)
from kerasmem.units import MIB

_ALLOCATOR = "TF_GPU_ALLOCATOR"
_GROWTH = "TF_FORCE_GPU_ALLOW_GROWTH"
_ASYNC_POOL = "TF_CUDA_MALLOC_ASYNC_SUPPORTED_PREALLOC"


class TensorFlowSettings:
    """The settings of `tf.config`, and of the environment that TensorFlow reads."""

    fixed_by_start = frozenset({"limit_bytes", "growth", "devices", "allocator"})

    def started(self) -> bool:
        """Return whether TensorFlow has its devices already."""
        # Private: what is public tells of it only by failing to change something.
        return context.context()._context_handle is not None

    def cards(
        self,
        shown: int,  # noqa: ARG002 - another backend needs it
    ) -> int:
        """Return how many GPUs there are."""
        return len(_gpus())

    def visible(
        self,
        shown: int,  # noqa: ARG002 - another backend needs it
    ) -> tuple[int, ...]:
        """Return the numbers of the GPUs that TensorFlow sees."""
        visible = tf.config.get_visible_devices("GPU")
        return tuple(n for n, gpu in enumerate(_gpus()) if gpu in visible)

    def refusal(self, wanted: Settings) -> str | None:
        """Return why TensorFlow cannot do this, None if it can."""
        allocator = wanted.allocator or _allocator()
        if wanted.limit_bytes is not None and allocator == CUDA_MALLOC_ASYNC:
            return NO_HARD_LIMIT
        return None

    def apply(
        self,
        wanted: Settings,
        totals: Mapping[int, int],  # noqa: ARG002 - another backend needs it
    ) -> None:
        """Put the settings in force."""
        if wanted.allocator is not None:
            _set_allocator(wanted.allocator)
        if wanted.growth is not None:
            _set_growth(wanted.growth)
        if wanted.devices is not None:
            gpus = [gpu for n, gpu in enumerate(_gpus()) if n in wanted.devices]
            tf.config.set_visible_devices(gpus, "GPU")
        if wanted.limit_bytes is not None:
            for gpu in tf.config.get_visible_devices("GPU"):
                _set_limit(gpu, wanted.limit_bytes)

    def in_force(
        self,
        card: int,
        total_bytes: int | None,  # noqa: ARG002 - another backend needs it
    ) -> InForce:
        """Return what holds for a GPU."""
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
            allocator=_allocator(),
        )


def _gpus() -> list[Any]:
    return tf.config.list_physical_devices("GPU")


def _allocator() -> str:
    return os.environ.get(_ALLOCATOR) or BFC


def _set_allocator(allocator: str) -> None:
    if allocator == BFC:
        os.environ.pop(_ALLOCATOR, None)
    else:
        os.environ[_ALLOCATOR] = allocator


def _set_growth(growth: bool) -> None:  # noqa: FBT001 - its one argument
    # By the environment: `set_memory_growth` refuses a GPU that has a limit.
    os.environ[_GROWTH] = "true" if growth else "false"
    if growth:
        os.environ.pop(_ASYNC_POOL, None)
    elif _allocator() == CUDA_MALLOC_ASYNC:
        os.environ[_ASYNC_POOL] = "-1"  # as much as BFC would take


def _set_limit(gpu: Any, limit_bytes: int) -> None:
    limit = tf.config.LogicalDeviceConfiguration(memory_limit=limit_bytes // MIB)
    tf.config.set_logical_device_configuration(gpu, [limit])
