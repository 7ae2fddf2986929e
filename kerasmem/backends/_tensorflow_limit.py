"""A limit on the memory that TensorFlow takes of a GPU."""

import tensorflow as tf

from kerasmem.units import MIB


def set_limit(limit_bytes: int) -> None:
    """Let TensorFlow take no more than this of the first GPU; before it is used."""
    card = tf.config.list_physical_devices("GPU")[0]
    limit = tf.config.LogicalDeviceConfiguration(memory_limit=limit_bytes // MIB)
    tf.config.set_logical_device_configuration(card, [limit])
