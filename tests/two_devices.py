"""Two devices on one CPU, for tests that run in a child."""

import os

import keras

TWO_DEVICES = {
    "XLA_FLAGS": "--xla_force_host_platform_device_count=2 "
    + os.environ.get("XLA_FLAGS", "")
}
"""What JAX wants in the environment before it starts, beside the flags of the suite."""


def two_devices():
    """Return what makes a scope in which models train on two devices."""
    if keras.backend.backend() != "tensorflow":
        return keras.distribution.DataParallel().scope
    import tensorflow as tf

    cpu = tf.config.list_physical_devices("CPU")[0]
    halves = [tf.config.LogicalDeviceConfiguration() for _ in range(2)]
    tf.config.set_logical_device_configuration(cpu, halves)
    return tf.distribute.MirroredStrategy(["CPU:0", "CPU:1"]).scope
