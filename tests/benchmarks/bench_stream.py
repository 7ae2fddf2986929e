"""Training from disk against training from memory: time and resident memory.

Run by hand: `python tests/benchmarks/bench_stream.py [--gib 4] [--folder DIR]`. Each
way is an epoch in a process of its own, in turns; the first epoch of a process warms
up and is not counted. Prints the median of the rounds' ratios, and the growth of the
memory. With `--paired N` both ways take turns in one process, N times 64 batches each,
which tells the ratio on a machine that others use too.
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
BATCH = 256
PIECE = 64 * BATCH


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


def network():
    """Return the model that is trained."""
    import keras

    layers = keras.layers
    model = keras.Sequential(
        [keras.Input((FEATURES,))]
        + [layers.Dense(512, activation="relu") for _ in range(3)]
        + [layers.Dense(10)]
    )
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile("adam", loss)
    return model


def measure_paired(path, rounds):
    """Train on pieces, in turns; return the ratios of their times."""
    from kerasmem.memory.pipeline import stream

    with np.load(path) as archive:
        x, y = archive["x"], archive["y"]
    model, ratios = network(), []
    np.save(path.with_name("piece.npy"), x[:PIECE])
    piece = np.load(path.with_name("piece.npy"), mmap_mode="r")
    ways = {
        "stream": lambda: model.fit(stream((piece, y[:PIECE]), BATCH), verbose=0),
        "memory": lambda: model.fit(x[:PIECE], y[:PIECE], batch_size=BATCH, verbose=0),
    }
    for number in range(rounds + 1):
        seconds = {}
        for way in sorted(ways, reverse=number % 2 == 0):
            start = time.perf_counter()
            ways[way]()
            seconds[way] = time.perf_counter() - start
        ratios.append(seconds["memory"] / seconds["stream"])
    return ratios[1:]  # the first warms up


def measure(path, way):
    """Train one epoch; return samples a second and the bytes that came on top."""
    import keras
    import psutil

    from kerasmem.memory.pipeline import stream

    model = network()
    if way == "stream":
        dataset = stream(path, BATCH, seed=0)
        samples, data = dataset.samples, {"x": dataset}
        few = stream((np.zeros((2048, FEATURES), "float32"), np.zeros(2048)), BATCH)
        model.fit(few, verbose=0)
    else:
        with np.load(path) as archive:
            data = {"x": archive["x"], "y": archive["y"], "batch_size": BATCH}
        samples = len(data["y"])
        model.fit(data["x"][:2048], data["y"][:2048], batch_size=BATCH, verbose=0)
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
    parser.add_argument("--paired", type=int, metavar="N")
    parser.add_argument("--measure", nargs=2, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.measure:
        way, path = options.measure
        print(json.dumps(measure(Path(path), way)))
        return
    with tempfile.TemporaryDirectory(dir=options.folder) as folder:
        path = Path(folder) / "train.npz"
        write(path, options.gib)
        if options.paired:
            ratios = measure_paired(path, options.paired)
            low, middle, high = np.quantile(ratios, [0.25, 0.5, 0.75])
            print(f"throughput ratio {middle:.3f}, half within {low:.3f} to {high:.3f}")
            return
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
    pairs = zip(results["stream"], results["memory"], strict=True)
    ratios = [streamed / loaded for (streamed, _), (loaded, _) in pairs]
    print(f"throughput ratio, median of {len(ratios)}: {statistics.median(ratios):.3f}")
    print(f"growth {max(g for _, g in results['stream']) / 2**20:.0f} MiB")


if __name__ == "__main__":
    main()
