"""The memory that there is, and how a child is kept to a part of it."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import keras
import psutil

from kerasmem import backends
from kerasmem.errors import ConfigError
from kerasmem.memory.card import read_card
from kerasmem.memory.measure import COUNTING_ALLOCATOR
from kerasmem.memory.settings import configure
from kerasmem.processes import ON_THE_CPU
from kerasmem.units import MIB, format_bytes, parse_bytes

ONE_THREAD = {"TF_NUM_INTEROP_THREADS": "1", "TF_NUM_INTRAOP_THREADS": "1"}
"""Environment in which TensorFlow starts operations one by one, as it does on a GPU.

With more threads the same step needs up to a tenth more or less from one time to the
next, and a limit decides by chance.
"""


USABLE = 0.96
"""Of what variables leave: nearer to the limit chance decides."""

USABLE_BY_THREADS = 0.9
"""The same where several threads start operations, in another order each time."""

ONLY_WHAT_IT_NEEDS = {
    "TF_FORCE_GPU_ALLOW_GROWTH": "true",
    "XLA_PYTHON_CLIENT_PREALLOCATE": "false",
}
"""Environment in which a process takes no more of a card than it needs."""


@dataclass(frozen=True)
class Limit:
    """A memory limit.

    Args:
        nbytes: no more can be had.
        usable_bytes: a batch that needs more is too near to it.
    """

    nbytes: int
    usable_bytes: int

    @classmethod
    def beside(cls, fixed_bytes: int, nbytes: int, usable: float = USABLE) -> "Limit":
        """Return a limit of which variables take so many bytes.

        Args:
            fixed_bytes: what they take.
            nbytes: the limit.
            usable: share of the rest that a step may need.
        """
        return cls(nbytes, fixed_bytes + round(usable * (nbytes - fixed_bytes)))


def limit_in_bytes(memory_limit: Any, device: str) -> int:
    """Return the limit: the one given, or what the device has free.

    Raises:
        ConfigError: if it is no size, or nobody tells how large the device is.
    """
    if memory_limit is not None:
        return parse_bytes(memory_limit)
    if device == "cpu":
        return psutil.virtual_memory().available
    card = read_card(next(iter(backends.current().cuda_ordinals().values())))
    if card is None:
        raise ConfigError(
            "NVIDIA's driver does not tell how much memory the GPU has. Expected: a "
            "limit. Received: memory_limit=None. Next: pass memory_limit='8GiB'."
        )
    return card.total_bytes - card.used_bytes


def check_limit(limit_bytes: int, needed_bytes: int) -> None:
    """Raise unless the weights and one sample can be within the limit.

    Raises:
        ConfigError: if they cannot.
    """
    if limit_bytes <= needed_bytes:
        raise ConfigError(
            "The limit is below what the model's variables take whatever the batch "
            f"size. Expected: more than {format_bytes(needed_bytes)}. Received: "
            f"memory_limit={format_bytes(limit_bytes)}."
        )


def environment(
    limit_bytes: int, backend: str, device: str, *, one_thread: bool = True
) -> Mapping[str, str]:
    """Return the environment in which a child keeps to the limit, where one can.

    Args:
        limit_bytes: the limit.
        backend: name of the Keras backend of the child.
        device: `"cpu"` or `"gpu"`.
        one_thread: whether TensorFlow starts operations one by one on a CPU; otherwise
            as this process does.
    """
    if device == "gpu":
        return ONLY_WHAT_IT_NEEDS
    if backend != "tensorflow":
        return ON_THE_CPU
    limited = {"TF_CPU_BFC_MEM_LIMIT_IN_MB": str(max(limit_bytes // MIB, 1))}
    threads = ONE_THREAD if one_thread else {}
    return {**ON_THE_CPU, **COUNTING_ALLOCATOR, **threads, **limited}


def set_limit(limit_bytes: int, device: str) -> None:
    """Keep this process to the limit, where its environment does not yet."""
    if device == "gpu" and keras.backend.backend() in {"tensorflow", "torch"}:
        configure(limit=limit_bytes)
