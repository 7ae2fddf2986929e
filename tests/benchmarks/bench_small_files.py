"""LeNet-300-100 and LeNet-5 on MNIST as small files, against Deep Compression.

Run by hand, with the path of MNIST as `.npz`, a quarter of an hour a seed and network:

    KERAS_BACKEND=jax python -m tests.benchmarks.bench_small_files mnist.npz

The networks of `bench_lenet` are pruned, clustered to few values and trained on, and
saved with their weights coded by entropy. Han et al., "Deep compression", 2016, have 27
KB at 1.58 % (LeNet-300-100) and 44 KB at 0.74 % (LeNet-5). The error is that of the
model that was read back from the file.
"""

import argparse
import tempfile
from pathlib import Path

import keras

import kerasmem as km
from tests.benchmarks.bench_lenet import compiled, error, images, pruned_by, trained

PLANS = {"lenet300": (30, 16), "lenet5": (50, 16)}
"""How many times fewer weights, and how many values each weight may take."""

EPOCHS, RATE = 10, 3e-4


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("mnist")
    parser.add_argument("--network", choices=PLANS, default="lenet300")
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--dtype-policy", default="float32")
    options = parser.parse_args()
    keras.config.set_dtype_policy(options.dtype_policy)
    data = images(options.mnist)
    ratio, values = PLANS[options.network]
    for seed in options.seeds:
        dense = trained(options.network, data, seed)
        pruned, kept = pruned_by(dense, ratio, data, options.network)
        compiled(pruned, RATE, EPOCHS, len(data["train"][0]))
        result = km.compress(
            pruned,
            km.Cluster(values, include="kernel"),
            data=data["train"],
            fine_tune_epochs=EPOCHS,
            batch_size=128,
            seed=seed,
            coding="entropy",
        )
        size, wrong = read_back(result, data)
        print(
            f"seed {seed}: {size:,} bytes at {wrong:.2f} %; dense "
            f"{error(dense, data):.2f} %, {kept:.1f}x pruned "
            f"{error(pruned, data):.2f} %; {result.report.file_ratio:.0f}x smaller",
            flush=True,
        )


def read_back(result, data):
    """Return the bytes of the file, and the error of the model in it."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "small.keras"
        result.save(path)
        return path.stat().st_size, error(keras.models.load_model(path), data)


if __name__ == "__main__":
    main()
