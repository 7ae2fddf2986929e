"""A model of 1 GB of weights opened, read or mapped: time and resident memory.

Run by hand, two minutes a backend and 3 GB of disk beside the system's temporary files:

    KERAS_BACKEND=jax python -m tests.benchmarks.bench_memory_map [MIB]

Each figure is of a process of its own, which has opened a small model before. A layer
is a sixteenth of the weights. Resident memory counts pages of the file that were looked
at; the system takes them back when it needs them.
"""

import subprocess
import sys
import tempfile
import time
from pathlib import Path

import keras
import numpy as np

import kerasmem as km

LAYERS = 16

OPENER = """
import sys, time
import keras, numpy as np, psutil
import kerasmem as km

def resident():
    return psutil.Process().memory_info().rss / 2**20

def opened(path):
    return km.load_model(path, memory_map=how == "mapped")

how, small, large = sys.argv[1:]
opened(small)(np.ones((1, 64), "float32"))
before, began = resident(), time.perf_counter()
model = opened(large)
took = time.perf_counter() - began
figures = [resident() - before]
inputs = np.ones((1, model.input_shape[-1]), "float32")
for layer in model.layers[1:3]:
    layer(inputs)
    figures.append(resident() - before)
model(inputs)
figures.append(resident() - before)
print(f"{how}: {took:.2f} s; MiB more once opened, after one layer, two, all:",
      *(f"{figure:.1f}" for figure in figures))
"""


def main():
    mib = int(sys.argv[1]) if len(sys.argv) > 1 else 1024
    width = int((mib * 2**20 / 4 / LAYERS) ** 0.5)
    with tempfile.TemporaryDirectory() as folder:
        paths = [Path(folder) / name for name in ("small.keras", "large.keras")]
        for path, units in zip(paths, (64, width), strict=True):
            began = time.perf_counter()
            km.save_model(network(units), path, coding="stored")
        took = time.perf_counter() - began
        size = paths[1].stat().st_size / 2**20
        print(f"{keras.backend.backend()}, {size:.0f} MiB, saved in {took:.1f} s")
        for how in ("mapped", "read"):
            subprocess.run([sys.executable, "-c", OPENER, how, *paths], check=True)


def network(units):
    model = keras.Sequential([keras.Input((units,))])
    random = np.random.default_rng(0)
    for _ in range(LAYERS):
        model.add(keras.layers.Dense(units, kernel_initializer="zeros"))
        model.layers[-1].kernel.assign(
            random.random((units, units), dtype=np.float32) - 0.5
        )
    return model


if __name__ == "__main__":
    main()
