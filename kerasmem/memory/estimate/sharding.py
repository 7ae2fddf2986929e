"""Several devices that share a training: what one of them holds.

`keras.distribution` (JAX) lays each variable out over a mesh of devices and splits the
batch along one of its axes; replicas of TensorFlow have every variable each. What is
estimated is one device.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import keras

from kerasmem import backends
from kerasmem.errors import ConfigError
from kerasmem.types import Variable


def _replicated(_variable: Any) -> None:
    """Return that each device has all of a variable."""


def _none() -> None:
    """Return that there is no distribution."""


@dataclass(frozen=True)
class Sharding:
    """How devices share a training.

    Args:
        devices: number of devices.
        replicas: number of parts that a batch is split into; where a model is split,
            several devices have one part.
        layout_of: returns the layout of a variable, which has `shard_shape(shape)`;
            None where each device has all of it.
        config_of: returns the config of the distribution, for another process alone:
            one of the user's own has none.
    """

    devices: int = 1
    replicas: int = 1
    layout_of: Callable[[Any], Any | None] = _replicated
    config_of: Callable[[], Mapping[str, Any] | None] = _none

    @property
    def config(self) -> Mapping[str, Any] | None:
        """What makes the distribution anew where one program is for all devices.

        None where each replica runs a step of its own.

        Raises:
            ConfigError: if it is of a class of the user's own.
        """
        return self.config_of()

    def part_of(self, batch_size: int) -> int:
        """Return the samples that one replica gets at most of a batch.

        Example:
            >>> Sharding(devices=4, replicas=4).part_of(30)
            8
        """
        return -(-batch_size // self.replicas)

    def shard_shape(self, variable: Variable) -> tuple[int, ...]:
        """Return the shape of what one device holds of a variable.

        Raises:
            ConfigError: if its layout does not divide it evenly.
        """
        return shard_shape(variable, self.layout_of(variable))


ONE_DEVICE = Sharding()


def sharding_of(strategy: Any | None, backend: str) -> Sharding:
    """Return how devices share the training of a model.

    Args:
        strategy: that of TensorFlow that the model was made under.
        backend: the one that is asked about; only the running one has devices.
    """
    if backend != keras.backend.backend():
        return ONE_DEVICE
    running = backends.current()
    devices, replicas = running.sharing_of(strategy)
    if devices == 1:
        return ONE_DEVICE
    return Sharding(devices, replicas, running.layout_of, running.distribution_config)


def shard_shape(variable: Variable, layout: Any | None) -> tuple[int, ...]:
    """Return the shape of what one device holds of a variable.

    Args:
        variable: it has a shape and a path.
        layout: None for all of it.

    Raises:
        ConfigError: if the layout does not divide it evenly.
    """
    shape = tuple(variable.shape)
    if layout is None:
        return shape
    try:
        return tuple(layout.shard_shape(shape))
    except ValueError as error:
        raise ConfigError(
            "Devices hold equal parts of a variable. Expected: a layout that divides "
            f"each of its axes. Received: {variable.path!r} of shape {shape}, "
            f"{str(error).rstrip('.')}."
        ) from error
