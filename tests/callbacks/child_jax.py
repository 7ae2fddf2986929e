"""One of two processes that train together on JAX, with two devices each: prints JSON.

JAX counts no memory on a CPU, so the devices' figures are made up: of epoch, process
and device. The processes' own memory is real.
"""

import json
import os
import sys
import time
from pathlib import Path

# Beside the flags of the suite, with which XLA compiles in less time.
os.environ["XLA_FLAGS"] = "--xla_force_host_platform_device_count=2 " + (
    os.environ.get("XLA_FLAGS", "")
)

import jax
import keras
import numpy as np

from kerasmem import backends
from kerasmem.callbacks import MemoryMonitor
from kerasmem.records import DeviceReading
from kerasmem.units import MIB

EPOCHS = 3


def made_up(epoch):
    """Return readings of 1 MiB, twice as much per epoch, ten times per process."""
    return tuple(
        DeviceReading(
            name=f"{device.platform}:{device.id}",
            current_bytes=MIB * 2**epoch * 10 ** jax.process_index() + place,
            peak_bytes=3 * MIB * 2**epoch * 10 ** jax.process_index() + place,
            peak_was_reset=False,
        )
        for place, device in enumerate(jax.local_devices())
    )


class Epoch(keras.callbacks.Callback):
    """Sets the devices' figures; has process 0 come last at every epoch's end."""

    def __init__(self, others_file):
        super().__init__()
        self.others_file = others_file
        self.epoch = 0
        backends.current().device_memory = lambda: made_up(self.epoch)

    def on_epoch_begin(self, epoch, logs=None):
        self.epoch = epoch

    def on_epoch_end(self, epoch, logs=None):
        if jax.process_index() != 0:
            return
        while not self.others_file.exists() or (
            len(self.others_file.read_text().splitlines()) <= epoch
        ):
            time.sleep(0.01)


def main(process, port, folder):
    jax.config.update("jax_cpu_collectives_implementation", "gloo")
    jax.distributed.initialize(f"127.0.0.1:{port}", 2, process)
    keras.utils.set_random_seed(1)
    distribution = keras.distribution.DataParallel(
        devices=keras.distribution.list_devices(), auto_shard_dataset=False
    )
    keras.distribution.set_distribution(distribution)
    model = keras.Sequential([keras.Input((6,)), keras.layers.Dense(3)])
    model.compile("sgd", "mse")
    monitor = MemoryMonitor(log_dir=folder)
    callbacks = [Epoch(Path(folder) / "memory-p1.jsonl"), monitor]
    x, y = np.ones((16, 6), "float32"), np.ones((16, 3), "float32")
    options = {"batch_size": 4, "epochs": EPOCHS, "verbose": 0}
    history = model.fit(x, y, callbacks=callbacks, **options).history
    json.dump(history, sys.stdout)


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]), sys.argv[3])
