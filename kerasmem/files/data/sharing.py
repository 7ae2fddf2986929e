"""Batches that several devices share, as `keras.distribution` has them do on JAX."""

from typing import Any

import keras

from kerasmem.errors import DataError
from kerasmem.files.data.forms import is_array_data, sample_count


def shared(batch_size: int) -> int:
    """Return the largest batch up to a size that the devices can share evenly.

    Args:
        batch_size: in samples; what is returned is 0 if it is less than the devices.
    """
    return batch_size - batch_size % _devices()


def check_shared(data: Any, batch_size: int) -> None:
    """Raise unless the devices can share all batches evenly, the last one too.

    Args:
        data: samples in any of the forms that `kerasmem.files.data` lists; only arrays
            are looked at.
        batch_size: of arrays, in samples.

    Raises:
        DataError: with the number of devices.
    """
    devices, count = _devices(), sample_count(data)
    if not is_array_data(data) or count is None:
        return
    if count % devices or batch_size % devices:
        raise DataError(
            f"A batch is shared by {devices} devices, and keras.distribution takes "
            f"only what can be shared evenly: samples and batch_size in multiples of "
            f"{devices}. Received: {count} samples, batch_size={batch_size}. Next: "
            f"leave out {count % devices} samples, or take another batch_size."
        )


def _devices() -> int:
    """Return how many devices of this process a batch is shared by."""
    distribution = keras.distribution.distribution()
    if distribution is None:
        return 1
    return max(distribution.num_model_replicas // distribution.num_processes, 1)
