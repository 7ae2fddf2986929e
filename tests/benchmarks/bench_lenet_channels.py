"""LeNet-5 on MNIST with 5 and 10 filters and 16 units left of 20, 50 and 500.

Run by hand, with the path of MNIST as `.npz`, about an hour on 2 cores:

    python -m tests.benchmarks.bench_lenet_channels mnist.npz [--seeds 0 1 2]

The network of `bench_lenet` loses channels in several rounds and is trained after each.
Beside it a network of the same size is trained from scratch, for at least as many
epochs, in the same way; the literature gives 1.33 % for it. The error is that of the
last epoch on the 10,000 test images.
"""

import argparse
import statistics

import keras

import kerasmem as km
from kerasmem.compression.recipe import apply_technique
from tests.benchmarks.bench_lenet import (
    DENSE_EPOCHS,
    PENALTY,
    PRUNED_RATE,
    compiled,
    error,
    images,
    penalized,
    trained,
)

LEFT = {"conv2d/": 5 / 20, "conv2d_1/": 10 / 50, "dense/": 16 / 500}
ROUNDS, EPOCHS_BETWEEN, EPOCHS_AT_LAST = 4, 5, 30


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("mnist")
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--dtype-policy", default="float32")
    options = parser.parse_args()
    keras.config.set_dtype_policy(options.dtype_policy)
    data = images(options.mnist)
    errors = {"dense": [], "pruned": [], "scratch": []}
    for seed in options.seeds:
        keras.utils.clear_session()  # layers are named anew, as in LEFT
        dense = trained("lenet5", data, seed)
        small = narrowed(dense, data)
        alone = from_scratch(small, data, seed)
        for name, model in zip(errors, (dense, small, alone), strict=True):
            errors[name].append(error(model, data))
            print(f"seed {seed} {name}: {errors[name][-1]:.2f} %", flush=True)
    for name, found in errors.items():
        print(f"mean, {name}: {statistics.mean(found):.2f} %")


def narrowed(dense, data):
    """Return the network with few channels, after the last training."""
    model = dense
    for turn in range(1, ROUNDS + 1):
        ratios = {path: 1 - left ** (1 / ROUNDS) for path, left in LEFT.items()}
        if turn == ROUNDS:
            now = [w.shape[-1] for w in model.weights if w.name == "kernel"]
            ratios = {
                path: 1 - final / size
                for path, size, final in zip(LEFT, now, (5, 10, 16), strict=False)
            }
        choice = km.PruneChannels(0.0, ratios=ratios, criterion="group")
        model, _ = apply_technique(choice, model)
        fit(model, EPOCHS_AT_LAST if turn == ROUNDS else EPOCHS_BETWEEN, data)
    sizes = [w.shape[-1] for w in model.weights if w.name == "kernel"]
    assert sizes == [5, 10, 16, 10], sizes
    return model


def from_scratch(small, data, seed):
    keras.utils.set_random_seed(1000 + seed)
    model = keras.models.clone_model(small)
    epochs = DENSE_EPOCHS["lenet5"] + (ROUNDS - 1) * EPOCHS_BETWEEN + EPOCHS_AT_LAST
    return fit(model, epochs, data)


def fit(model, epochs, data):
    penalized(model, PENALTY)
    compiled(model, PRUNED_RATE, epochs, len(data["train"][0]))
    model.fit(*data["train"], batch_size=128, epochs=epochs, verbose=0)
    return model


if __name__ == "__main__":
    main()
