"""GPU descriptions for XLA's compiler.

XLA's memory plan depends on the compute capability, the number of cores and the limits
of a thread block. Throughput of the units is omitted because it changed no plan.
"""

import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from kerasmem.checks import OneOf, invalid
from kerasmem.errors import InputError
from kerasmem.units import KIB


@dataclass(frozen=True, kw_only=True)
class Card:
    """Specification of an NVIDIA GPU.

    Args:
        title: Name of the GPU.
        capability: Compute capability.
        cores: Number of streaming multiprocessors.
        device_bytes: Memory size in bytes, as reported by CUDA.
        bandwidth: Memory bandwidth in bytes per second.
        cache_bytes: Size of the L2 cache in bytes.
        shared_bytes: Shared memory per multiprocessor in bytes.
        clock_ghz: Maximum clock of the multiprocessors in GHz.
    """

    title: str
    capability: tuple[int, int]
    cores: int
    device_bytes: int
    bandwidth: int
    cache_bytes: int
    shared_bytes: int
    clock_ghz: float

    @property
    def description(self) -> str:
        """`GpuTargetConfigProto` in text format."""
        major, minor = self.capability
        threads = 2048 if self.capability in _MANY_THREADS else 1536
        threads = 1024 if self.capability == _TURING else threads
        units = 64 if self.capability in _FEW_UNITS else 128
        # From compute capability 8.0, 1 KiB of shared memory is reserved.
        most = self.shared_bytes - (KIB if major >= _AMPERE else 0)
        return f"""gpu_device_info {{
  threads_per_block_limit: 1024 threads_per_warp: 32
  threads_per_core_limit: {threads} core_count: {self.cores} fpus_per_core: {units}
  shared_memory_per_block: {48 * KIB} shared_memory_per_block_optin: {most}
  shared_memory_per_core: {self.shared_bytes} l2_cache_size: {self.cache_bytes}
  block_dim_limit_x: 2147483647 block_dim_limit_y: 65535 block_dim_limit_z: 65535
  thread_dim_limit_x: 1024 thread_dim_limit_y: 1024 thread_dim_limit_z: 64
  registers_per_core_limit: 65536 registers_per_block_limit: 65536
  memory_bandwidth: {self.bandwidth} device_memory_size: {self.device_bytes}
  clock_rate_ghz: {self.clock_ghz} device_address_bits: 64
  device_vendor: "NVIDIA Corporation"
  cuda_compute_capability {{ major: {major} minor: {minor} }}
}}
platform_name: "CUDA"
dnn_version_info {{ major: 9 minor: 10 }}
runtime_version {{ major: 12 minor: 8 }}
device_description_str: "{self.title}"
"""


_USABLE = 0.95
_AMPERE = 8
_TURING = (7, 5)
_MANY_THREADS = ((7, 0), (8, 0), (9, 0), (10, 0))
_FEW_UNITS = ((7, 0), (7, 5), (8, 0))

CARDS: Mapping[str, Card] = {
    name: Card(**row | {"capability": tuple(row["capability"])})
    for name, row in tomllib.loads(
        Path(__file__).with_name("gpus.toml").read_text(encoding="utf-8")
    ).items()
}
"""GPU specifications by the name used in `device=`."""


def is_card(device: str) -> bool:
    """Return whether `device` is the name of a GPU or of a description file.

    Example:
        >>> is_card("h200"), is_card("gpu")
        (True, False)
    """
    return device in CARDS or device.endswith((".txtpb", ".pbtxt"))


def usable_bytes(device: str) -> int:
    """Return the usable memory of a GPU in bytes: 95 %, as in TensorFlow.

    Raises:
        ConfigError: If the memory of the GPU is unknown.

    Example:
        >>> usable_bytes("l4") // 2**30
        22
    """
    OneOf(tuple(CARDS)).check("find_batch_size without memory_limit", "device", device)
    return round(CARDS[device].device_bytes * _USABLE)


def description_of(device: str) -> str:
    """Return the description of a GPU for XLA.

    A file contains a `GpuTargetConfigProto` in text format, such as openxla provides.

    Raises:
        ConfigError: If `device` is neither.
        InputError: If the file cannot be read.
    """
    if device in CARDS:
        return CARDS[device].description
    if not is_card(device):
        valid = (
            f"one of {', '.join(CARDS)} for method='plan', or the path of a GPU "
            "description (.txtpb) from target_config/specs in openxla/xla"
        )
        raise invalid("estimate_memory", "device", device, valid)
    try:
        return Path(device).read_text(encoding="utf-8")
    except OSError as error:
        raise InputError(
            f"The GPU description cannot be read: {error.strerror}. Expected: a text "
            f"file. Received: device={device!r}."
        ) from error
