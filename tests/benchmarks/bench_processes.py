"""Compression in several JAX processes: the same model in each, and that of one.

Run by hand, a few minutes on 2 cores; without `--search`, a recipe:

    python -m tests.benchmarks.bench_processes [--processes 2] [--search]

Every process has one CPU device, with `keras.distribution.DataParallel` over all of
them, and is given the same arrays. A step sums up what all of them have in a batch, so
it is the step of one process. Each writes its file; that of the first is opened again.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

os.environ["KERAS_BACKEND"] = "jax"
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import keras
import numpy as np

import kerasmem as km
from tests.ports import unused_ports

_SECONDS = 500
L = keras.layers


def samples():
    x = np.random.default_rng(0).normal(size=(128, 8)).astype("float32")
    return x, x[:, :3].argmax(1)


def network():
    keras.utils.set_random_seed(0)
    hidden = (L.Dense(64, activation="relu"), L.Dense(32, activation="relu"))
    model = keras.Sequential([keras.Input((8,)), *hidden, L.Dense(3)])
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(keras.optimizers.SGD(0.1), loss, metrics=["accuracy"])
    return model


def compressed(*, searches=False):
    x, y = samples()
    data = {"data": (x, y), "validation_data": (x + 0, y), "seed": 0}
    if searches:
        data |= {"target": {"weight_bytes": 4000}, "max_drop": None}
        return km.compress(network(), fine_tune_epochs=1, verbose=0, **data)
    steps = [
        km.PruneChannels(0.25),
        km.Prune(0.5),
        km.Cluster(8),
        km.Quantize("int8"),
    ]
    return km.compress(network(), steps, fine_tune_epochs=1, verbose=0, **data)


def one_of(rank, count, port, folder, searches):
    """Compress in one of several processes, and leave the model in a file."""
    import jax

    if count > 1:
        jax.distributed.initialize(f"localhost:{port}", count, rank)
    assert len(jax.devices()) == count
    assert len(jax.local_devices()) == 1
    # The samples are arrays, which Keras cannot divide among processes.
    spread = keras.distribution.DataParallel(auto_shard_dataset=False)
    keras.distribution.set_distribution(spread)
    result = compressed(searches=searches)
    result.save(folder / f"{count}_{rank}.keras")
    told = json.dumps(result.report.after.metrics)
    (folder / f"{count}_{rank}.json").write_text(told, encoding="utf-8")


def run(count, folder, *, searches=False):
    """Compress in `count` processes, and return what they wrote: models and metrics."""
    (port,) = unused_ports(1)
    command = [sys.executable, "-m", "tests.benchmarks.bench_processes"]
    processes = [
        subprocess.Popen([*command, *map(str, (rank, count, port, folder, searches))])
        for rank in range(count)
    ]
    try:
        assert [each.wait(timeout=_SECONDS) for each in processes] == [0] * count
    finally:
        for process in processes:
            process.kill()
    paths = [folder / f"{count}_{rank}.keras" for rank in range(count)]
    told = [path.with_suffix(".json").read_text(encoding="utf-8") for path in paths]
    return [(km.load_model(p), json.loads(t)) for p, t in zip(paths, told, strict=True)]


def furthest(model, other):
    """Return the largest difference between the weights of two models."""
    pairs = zip(model.get_weights(), other.get_weights(), strict=True)
    return max(np.abs(a.astype("f8") - b.astype("f8")).max() for a, b in pairs)


def main(options):
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        ((alone, told),) = run(1, folder, searches=options.search)
        print(f"one process: {told}")
        found = run(options.processes, folder, searches=options.search)
        for rank, (model, metrics) in enumerate(found):
            far = furthest(model, alone)
            print(f"process {rank}: furthest weight from that {far:.3g}, {metrics}")


if __name__ == "__main__":
    if sys.argv[1:] and sys.argv[1].isdecimal():
        *numbers, place, is_search = sys.argv[1:]
        one_of(*map(int, numbers), Path(place), is_search == "True")
    else:
        parser = argparse.ArgumentParser()
        parser.add_argument("--processes", type=int, default=2)
        parser.add_argument("--search", action="store_true")
        main(parser.parse_args())
