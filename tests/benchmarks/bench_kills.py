"""A recipe killed at random moments, and a file killed while it is written.

Run by hand, an hour on two cores:

    KERAS_BACKEND=jax python -m tests.benchmarks.bench_kills recipe [KILLS]
    KERAS_BACKEND=jax python -m tests.benchmarks.bench_kills save [KILLS]

`recipe`: `kill -9` at random moments of `km.compress(..., checkpoint_dir=...)`, which
is called again each time; in the end its file must hold the weights of one that nobody
killed. `save`: `kill -9` while a model is saved again and again over itself; what is
there must always be a whole file.
"""

import subprocess
import sys
import tempfile
import time
from pathlib import Path

import keras
import numpy as np

from kerasmem.files.archive import check_archive
from tests.compression.test_checkpoints import CHILD, kill_and_go_on

SAVER = """
import sys
import keras
import kerasmem as km

model = keras.models.load_model(sys.argv[1])
print("begins", flush=True)
while True:
    for coding in ("deflate", "entropy"):
        km.save_model(model, sys.argv[2], coding=coding)
"""


def main():
    what, kills = (*sys.argv[1:], "50")[:2]
    random = np.random.default_rng(0)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder)
        network().save(path / "model.keras")
        if what == "recipe":
            killed = kill_and_go_on(CHILD, path, int(kills), random, longest=6.0)
            print(f"killed {killed} times, then the same weights as never killed")
        else:
            print(
                f"{killed_while_saving(path, int(kills), random)} kills, always whole"
            )


def network():
    keras.utils.set_random_seed(0)
    widths = (40, 30, 3)
    model = keras.Sequential(
        [keras.Input((6,)), *(keras.layers.Dense(n, activation="relu") for n in widths)]
    )
    model.compile("adam", "mse")
    return model


def killed_while_saving(folder, kills, random):
    model, target = folder / "model.keras", folder / "target.keras"
    expected = keras.models.load_model(model).get_weights()
    line = [sys.executable, "-c", SAVER, str(model), str(target)]
    for _ in range(kills):
        with subprocess.Popen(
            line, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
        ) as run:
            run.stdout.readline()
            time.sleep(random.uniform(0.02, 0.5))
            run.kill()
        if target.exists():
            check_archive(target)
            found = keras.models.load_model(target).get_weights()
            assert all(map(np.array_equal, expected, found))
    return kills


if __name__ == "__main__":
    main()
