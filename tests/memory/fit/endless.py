"""A fit that runs out of memory once, saves after each epoch, and does not end.

python -m tests.memory.fit.endless FOLDER
"""

import sys
import warnings
from pathlib import Path

import keras
import numpy as np

import kerasmem as km
from tests.memory.fit.failing import Shortage, checked


class Save(keras.callbacks.Callback):
    def __init__(self, path):
        super().__init__()
        self.path = path

    def on_epoch_end(self, epoch, logs=None):
        km.save_model(self.model, self.path)


@keras.saving.register_keras_serializable("tests")
class Greedy(keras.optimizers.Adam):
    shortage = Shortage(at=[3])

    def update_step(self, gradient, variable, learning_rate):
        super().update_step(checked(gradient, self.shortage), variable, learning_rate)


def main(folder):
    warnings.simplefilter("ignore")
    model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(256)])
    model.add(keras.layers.Dense(1))
    model.compile(Greedy(), "mse", jit_compile=keras.backend.backend() == "jax")
    x = np.ones((64, 4), "float32")
    arguments = {"batch_size": 16, "epochs": 100_000, "verbose": 0}
    saves = [Save(Path(folder) / "model.keras")]
    km.fit(model, x, x[:, :1], log_dir=folder, callbacks=saves, **arguments)


if __name__ == "__main__":
    main(sys.argv[1])
