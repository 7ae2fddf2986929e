"""Determines the share of one device in a training on several devices.

`keras.distribution` (JAX) shards variables over a device mesh and splits the batch
along one axis. TensorFlow replicas each hold all variables. Estimates are for one
device.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import keras

from kerasmem import backends
from kerasmem.errors import ConfigError
from kerasmem.types import Variable


@dataclass(frozen=True)
class Sharding:
    """Distribution of a training over devices.

    Args:
        devices: Number of devices.
        replicas: Number of parts of a batch. Several devices share one part if the
            model is sharded.
        layout_of: Returns the layout of a variable, which has `shard_shape(shape)`, or
            `None` for the whole variable.
        config_of: Returns the config of the distribution for another process. Raises
            for a custom distribution class.
    """

    devices: int = 1
    replicas: int = 1
    layout_of: Callable[[Any], Any | None] = lambda _: None
    config_of: Callable[[], Mapping[str, Any] | None] = lambda: None

    @property
    def config(self) -> Mapping[str, Any] | None:
        """Config of the distribution, `None` if each replica runs a separate step.

        Raises:
            ConfigError: If the distribution has a custom class.
        """
        return self.config_of()

    def part_of(self, batch_size: int) -> int:
        """Return the maximum number of samples of a batch per replica.

        Example:
            >>> Sharding(devices=4, replicas=4).part_of(30)
            8
        """
        return -(-batch_size // self.replicas)

    def shard_shape(self, variable: Variable) -> tuple[int, ...]:
        """Return the shape of a variable's shard on one device.

        Raises:
            ConfigError: If the layout does not divide the variable evenly.
        """
        return shard_shape(variable, self.layout_of(variable))


ONE_DEVICE = Sharding()


def sharding_of(strategy: Any | None, backend: str) -> Sharding:
    """Return the distribution of a model.

    Only the current backend has devices.
    """
    if backend != keras.backend.backend():
        return ONE_DEVICE
    running = backends.current()
    devices, replicas = running.sharing_of(strategy)
    if devices == 1:
        return ONE_DEVICE
    return Sharding(devices, replicas, running.layout_of, running.distribution_config)


def shard_shape(variable: Variable, layout: Any | None) -> tuple[int, ...]:
    """Return the shape of a variable's shard on one device.

    Raises:
        ConfigError: If the layout does not divide the variable evenly.
    """
    shape = tuple(variable.shape)
    if layout is None:
        return shape
    try:
        return tuple(layout.shard_shape(shape))
    except ValueError as error:
        raise ConfigError(
            "A variable cannot be split into equal parts. Expected: a layout that "
            f"divides each axis. Received: {variable.path!r} of shape {shape}, "
            f"{str(error).rstrip('.')}."
        ) from error
