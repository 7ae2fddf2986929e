"""Training from disk against training from memory: time and resident memory.

Run by hand: `python tests/benchmarks/bench_stream.py [--gib 4] [--folder DIR]`. Each
way is an epoch in a process of its own, in turns; the first epoch of a process warms
up and is not counted. Prints the ratio of the medians and the growth of the memory.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
import zipfile
from pathlib import Path

import numpy as np

FEATURES = 1024


def write(path, gib):
    """Write an `.npz` with `gib` GiB of random samples, a piece at a time."""
    rows = int(gib * 2**30) // (4 * FEATURES)
    rng = np.random.default_rng(0)
    x = np.lib.format.open_memmap(
        path.with_name("x.npy"), mode="w+", dtype="float32", shape=(rows, FEATURES)
    )
    for start in range(0, rows, 4096):
        piece = x[start : start + 4096]
        piece[:] = rng.standard_normal(piece.shape, dtype="float32")
    x.flush()
    np.save(path.with_name("y.npy"), rng.integers(0, 10, rows).astype("int32"))
    with zipfile.ZipFile(path, "w", zipfile.ZIP_STORED) as archive:
        for name in ("x.npy", "y.npy"):
            archive.write(path.with_name(name), name)
            path.with_name(name).unlink()


def measure(path, way):
    """Train one epoch; return samples a second and the bytes that came on top."""
    import keras
    import psutil

    from kerasmem.memory.pipeline import stream

    layers = keras.layers
    model = keras.Sequential(
        [keras.Input((FEATURES,))]
        + [layers.Dense(512, activation="relu") for _ in range(3)]
        + [layers.Dense(10)]
    )
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile("adam", loss)
    if way == "stream":
        dataset = stream(path, 256, seed=0)
        samples, data = dataset.samples, {"x": dataset}
        few = stream((np.zeros((2048, FEATURES), "float32"), np.zeros(2048)), 256)
        model.fit(few, verbose=0)
    else:
        with np.load(path) as archive:
            data = {"x": archive["x"], "y": archive["y"], "batch_size": 256}
        samples = len(data["y"])
        model.fit(data["x"][:2048], data["y"][:2048], batch_size=256, verbose=0)
    process, most = psutil.Process(), 0
    before = process.memory_info().rss

    class Watch(keras.callbacks.Callback):
        def on_train_batch_end(self, batch, logs=None):
            nonlocal most
            if batch % 20 == 0:
                most = max(most, process.memory_info().rss - before)

    start = time.perf_counter()
    model.fit(**data, verbose=0, callbacks=[Watch()])
    return samples / (time.perf_counter() - start), most


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--gib", type=float, default=4)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--folder", default=tempfile.gettempdir())
    parser.add_argument("--measure", nargs=2, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.measure:
        way, path = options.measure
        print(json.dumps(measure(Path(path), way)))
        return
    with tempfile.TemporaryDirectory(dir=options.folder) as folder:
        path = Path(folder) / "train.npz"
        write(path, options.gib)
        results = {"stream": [], "memory": []}
        for _ in range(options.rounds):
            for way, seen in results.items():
                finished = subprocess.run(
                    [sys.executable, __file__, "--measure", way, str(path)],
                    capture_output=True,
                    check=True,
                    env=os.environ | {"TF_CPP_MIN_LOG_LEVEL": "3"},
                )
                seen.append(json.loads(finished.stdout.splitlines()[-1]))
                speed, growth = seen[-1]
                print(f"{way}: {speed:,.0f} samples/s, +{growth / 2**20:.0f} MiB")
    speeds = {
        way: statistics.median(s for s, _ in seen) for way, seen in results.items()
    }
    print(f"throughput ratio {speeds['stream'] / speeds['memory']:.3f}")
    print(f"growth {max(g for _, g in results['stream']) / 2**20:.0f} MiB")


if __name__ == "__main__":
    main()
