"""The time of every verb, as a ratio to what stock Keras takes in the same run.

Run by hand, on two quiet cores, some minutes:

    python -m tests.benchmarks.bench_verbs [--rounds 5] [--small]

A row is a verb of ours and one of Keras's that are called in turns, and the median of
each. A machine that changes its speed does so for both. `--small` takes a net of a few
hundred thousand weights, for a look at whether all of it runs.
"""

import argparse
import itertools
import statistics
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import keras
import numpy as np

import kerasmem as km
from kerasmem.files.coding import decode, encode
from kerasmem.files.threads import Threads
from kerasmem.files.write import write_model
from kerasmem.graph.values import to_numpy


@dataclass
class Row:
    """A verb beside Keras's or a copy, or alone: then `nbytes` are what it works on."""

    name: str
    ours: Callable
    keras: Callable | None = None
    most: float = 0.0
    nbytes: int = 0


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--small", action="store_true")
    options = parser.parse_args()
    dense = network(small=options.small)
    sparse = pruned(dense, 0.8)
    with tempfile.TemporaryDirectory() as folder:
        here = Path(folder)
        rows = (saving(dense, sparse, here), compressing(here), coding(sparse))
        for row in itertools.chain(*rows):
            print(told(row, *measured(row, options.rounds)), flush=True)
        for path in sorted(Path(folder).glob("*.keras")):
            print(f"{path.name:24} {path.stat().st_size:>12,} bytes")


def network(*, small):
    if not small:
        return keras.applications.ResNet50(weights=None)
    inputs = keras.Input((32, 32, 3))
    x = keras.layers.Conv2D(64, 3, activation="relu")(inputs)
    x = keras.layers.Conv2D(128, 3, activation="relu")(x)
    x = keras.layers.GlobalAveragePooling2D()(x)
    return keras.Model(inputs, keras.layers.Dense(1000)(x))


def pruned(model, sparsity):
    """Return a copy whose weights of several axes are pruned by their magnitude."""
    copy = keras.models.clone_model(model)
    copy.set_weights([sparse(to_numpy(each), sparsity) for each in model.weights])
    return copy


def sparse(weight, sparsity):
    size = np.abs(weight)
    if weight.ndim < 2:
        return weight
    return np.where(size < np.quantile(size, sparsity), 0, weight).astype(weight.dtype)


def saving(dense, sparse, folder):
    """Give the rows of saving and loading, which leave their files in the folder."""
    plain = folder / "keras.keras"
    keras_saves = lambda: dense.save(plain)  # noqa: E731
    dense.save(plain)
    for name, model in (("dense", dense), ("pruned", sparse)):
        path = folder / f"{name}.keras"
        for _ in range(2):  # a class that is new to the process is loaded whole
            km.save_model(model, path)
        yield Row(
            f"save {name}",
            lambda m=model, p=path: km.save_model(m, p),
            keras_saves,
            2.0,
        )
        yield Row(
            f"save {name}, unchecked",
            lambda m=model: write_model(m, folder / "unchecked.keras", "deflate"),
            keras_saves,
            2.0,
        )
        yield Row(
            f"load {name}",
            lambda p=path: km.load_model(p),
            lambda: keras.models.load_model(plain),
            1.2,
        )
        yield Row(
            f"load {name}, the file alike",
            lambda p=path: km.load_model(p),
            lambda p=path: keras.models.load_model(p),
            1.1,
        )
    path = folder / "entropy.keras"
    km.save_model(sparse, path, coding="entropy")
    yield Row(
        "load entropy",
        lambda: km.load_model(path),
        lambda: keras.models.load_model(plain),
        2.0,
    )


def compressing(folder):
    """Give the rows of `km.compress`, beside Keras's load and save of the same file."""
    plain, copy = folder / "keras.keras", folder / "copy.keras"
    for name, step in (("int8", km.Quantize("int8")), ("prune", km.Prune(0.8))):
        yield Row(
            f"compress {name}",
            lambda s=step: km.compress(plain, s),
            lambda: keras.models.load_model(plain).save(copy),
            2.0,
        )


def coding(model):
    """Give the rows of entropy coding alone, of pruned floats and of int8 codes."""
    weights = [to_numpy(each) for each in model.weights if len(each.shape) > 1]
    random = np.random.default_rng(0)
    codes = [
        np.clip(np.round(40 * random.normal(size=each.shape)), -127, 127).astype("int8")
        for each in weights
    ]
    for name, arrays, least in (
        ("pruned", weights, (60, 120)),
        ("int8", codes, (60, 60)),
    ):
        coded = [encode(each) for each in arrays]
        size = sum(each.nbytes for each in arrays)
        for verb, function, some, mb in (
            ("write", encode, arrays, least[0]),
            ("read", decode, coded, least[1]),
        ):
            work = lambda f=function, s=some: in_threads(f, s)  # noqa: E731
            yield Row(f"entropy {name}, {verb}", work, most=mb, nbytes=size)


def in_threads(function, arrays):
    with Threads() as threads:
        for each in arrays:
            threads.run(function, each, then=lambda found: None)


def measured(row, rounds):
    """Return the median seconds of ours and of Keras's, called in turns."""
    calls = [row.ours, row.keras] if row.keras else [row.ours]
    times = [[] for _ in calls]
    for _ in range(rounds):
        for call, found in zip(calls, times, strict=True):
            start = time.perf_counter()
            call()
            found.append(time.perf_counter() - start)
    return [statistics.median(found) for found in times]


def told(row, ours, keras_=None):
    if keras_ is None:
        speed = row.nbytes / 1e6 / ours
        return (
            f"{row.name:24} {ours:7.3f} s  {speed:6.1f} MB/s, at least {row.most:.0f}"
        )
    return (
        f"{row.name:24} {ours:7.3f} s, Keras {keras_:7.3f} s: {ours / keras_:5.2f}x, "
        f"at most {row.most}"
    )


if __name__ == "__main__":
    main()
