"""Saves a model over itself in processes that are killed, and looks at the file.

    python killed_saver.py PATH KILLS

Keras is imported once, and runs in the forks alone: before it has run, forks are safe.
"""

import itertools
import os
import random
import signal
import sys
import time
from pathlib import Path

import keras
import numpy as np

import kerasmem as km
from kerasmem.files.archive import check_archive, opened_weights
from kerasmem.files.coding import decode
from kerasmem.files.datasets import datasets
from kerasmem.files.weights import could_be_code

CODINGS = "deflate", "entropy", "stored"


def main():
    path, kills = Path(sys.argv[1]), int(sys.argv[2])
    chance, number = random.Random(0), 0
    for _ in range(kills):
        before, number = number, after_a_kill(path, number, chance.uniform(0, 0.4))
        assert number >= before, f"{number} after {before}"
        sys.stdout.write(f"{number}\n")


def after_a_kill(path, number, seconds):
    """Return the number in a file that a killed process wrote, or left as it was."""
    ready, started = os.pipe()
    parent, child = os.getpid(), os.fork()
    if not child:
        save_while(parent, path, number, started)
    os.close(started)
    assert os.read(ready, 1), "the process has ended by itself"
    time.sleep(seconds)
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    os.close(ready)
    return number_in(path) if path.exists() else number


def save_while(parent, path, number, started):
    """Save again and again, as long as there is the process that will kill this one."""
    layers = [keras.layers.Dense(units) for units in (40, 30, 3)]
    model = keras.Sequential([keras.Input((6,)), *layers])
    for count in itertools.count(number + 1):
        model.set_weights([np.full(w.shape, count) for w in model.weights])
        km.save_model(model, path, coding=CODINGS[count % 3])
        if count == number + 1:
            os.write(started, b".")
        if os.getppid() != parent:
            os._exit(0)


def number_in(path):
    """Return the one number that all weights in a whole file are."""
    check_archive(path)
    with opened_weights(path) as weights:
        arrays = [weights[each.name][()] for each in datasets(weights)]
    arrays = [decode(x.tobytes()) if could_be_code(x) else x for x in arrays]
    assert sorted(x.size for x in arrays) == [3, 30, 40, 90, 240, 1200]
    (number,) = {float(entry) for x in arrays for entry in x.flat}
    return int(number)


if __name__ == "__main__":
    main()
