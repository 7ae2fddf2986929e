"""Several devices on one CPU, for tests that run in a child."""

import os

import keras

TWO_DEVICES = {
    "XLA_FLAGS": "--xla_force_host_platform_device_count=2 "
    + os.environ.get("XLA_FLAGS", "")
}
"""What JAX wants in the environment before it starts, beside the flags of the suite."""


def split_cpu(count=2):
    """Make `count` logical devices of TensorFlow's CPU, before it is used."""
    import tensorflow as tf

    cpu = tf.config.list_physical_devices("CPU")[0]
    parts = [tf.config.LogicalDeviceConfiguration() for _ in range(count)]
    tf.config.set_logical_device_configuration(cpu, parts)


def two_devices():
    """Return what makes a scope in which models train on two devices."""
    if keras.backend.backend() != "tensorflow":
        return keras.distribution.DataParallel().scope
    import tensorflow as tf

    split_cpu()
    return tf.distribute.MirroredStrategy(["CPU:0", "CPU:1"]).scope
