"""A recipe killed at random moments, and a file killed while it is written.

Run by hand, an hour on two cores:

    KERAS_BACKEND=jax python -m tests.benchmarks.bench_kills recipe [KILLS]
    KERAS_BACKEND=jax python -m tests.benchmarks.bench_kills save [KILLS]

`recipe`: `kill -9` at random moments of `km.compress(..., checkpoint_dir=...)`, which
is called again each time; in the end its file must hold the weights of one that nobody
killed, in as many runs as it takes. `save`: `kill -9` while a model is saved again and
again over itself, in every coding; what is there must always be a whole file, of one
save and none before the last.
"""

import sys
import tempfile
from pathlib import Path

import keras
import numpy as np

from tests.compression.test_checkpoints import CHILD, kill_and_go_on
from tests.files.test_killed import killed


def main():
    what, kills = (*sys.argv[1:], "50")[:2]
    random = np.random.default_rng(0)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder)
        if what == "recipe":
            times = rounds = 0
            while times < int(kills):
                (folder := path / str(rounds)).mkdir()
                network().save(folder / "model.keras")
                left = int(kills) - times
                times += kill_and_go_on(CHILD, folder, left, random, longest=6.0)
                rounds += 1
                print(f"{times} kills in {rounds} runs, each ended alike", flush=True)
        else:
            numbers = killed(path / "target.keras", int(kills))
            print(f"{len(numbers)} kills, {numbers[-1]} saves, always a whole file")


def network():
    keras.utils.set_random_seed(0)
    widths = (40, 30, 3)
    model = keras.Sequential(
        [keras.Input((6,)), *(keras.layers.Dense(n, activation="relu") for n in widths)]
    )
    model.compile("adam", "mse")
    return model


if __name__ == "__main__":
    main()
