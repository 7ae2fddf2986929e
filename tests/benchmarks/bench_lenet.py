"""LeNet-300-100 and LeNet-5 on MNIST, pruned: test error against the dense network's.

Run by hand, with the path of MNIST as `.npz`:

    python tests/benchmarks/bench_lenet.py mnist.npz [--network lenet5] [--seeds 0 1 2]

On two cores the first network takes 12 minutes under JAX, the second an hour under
TensorFlow with `--dtype-policy mixed_bfloat16`.

The networks are those of LeCun et al., "Gradient-based learning applied to document
recognition", 1998, as the pruning literature counts them (Han et al., 2015): 266,200
and 430,500 weights. A network is trained, then pruned over all its kernels together
while it is trained on, with a penalty on the squares of the weights; the error is that
of the last epoch on the 10,000 test images. The settings were chosen on seed 0 of the
first network.
"""

import argparse
import statistics

import keras
import numpy as np
from keras import layers

import kerasmem as km
from kerasmem.graph.values import to_numpy

BATCH = 128
RATIOS = {"lenet300": (12, 60), "lenet5": (12, 100)}
DENSE_EPOCHS = {"lenet300": 30, "lenet5": 15}
PRUNED_EPOCHS = {"lenet300": 60, "lenet5": 30}
DENSE_RATE, PRUNED_RATE = 1e-3, 3e-3  # of learning, at the start of the cosine
PENALTY = 1e-4


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("mnist")
    parser.add_argument("--network", choices=RATIOS, default="lenet300")
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--dtype-policy", default="float32")
    options = parser.parse_args()
    keras.config.set_dtype_policy(options.dtype_policy)
    data = images(options.mnist)
    base, pruned = [], {ratio: [] for ratio in RATIOS[options.network]}
    for seed in options.seeds:
        dense = trained(options.network, data, seed)
        base.append(error(dense, data))
        print(f"seed {seed}: dense {base[-1]:.2f} %", flush=True)
        for ratio, errors in pruned.items():
            model, kept = pruned_by(dense, ratio, data, options.network)
            errors.append(error(model, data))
            print(f"  {kept:.1f}x: {errors[-1]:.2f} %", flush=True)
    print(f"mean: dense {statistics.mean(base):.2f} %")
    for ratio, errors in pruned.items():
        print(f"  {ratio}x: {statistics.mean(errors):.2f} %")


def images(path):
    with np.load(path) as arrays:
        return {
            part: (
                (arrays[f"x_{part}"] / np.float32(255.0))[..., None].astype("float32"),
                arrays[f"y_{part}"].astype("int32"),
            )
            for part in ("train", "test")
        }


def network(name):
    if name == "lenet300":
        body = [
            layers.Flatten(),
            layers.Dense(300, activation="relu"),
            layers.Dense(100, activation="relu"),
        ]
    else:
        body = [
            layers.Conv2D(20, 5),
            layers.MaxPooling2D(),
            layers.Conv2D(50, 5),
            layers.MaxPooling2D(),
            layers.Flatten(),
            layers.Dense(500, activation="relu"),
        ]
    return keras.Sequential([keras.Input((28, 28, 1)), *body, layers.Dense(10)])


def compiled(model, rate, epochs, samples):
    steps = epochs * -(-samples // BATCH)
    model.compile(
        keras.optimizers.Adam(keras.optimizers.schedules.CosineDecay(rate, steps)),
        keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        metrics=["accuracy"],
    )
    return model


def trained(name, data, seed):
    keras.utils.set_random_seed(seed)
    epochs = DENSE_EPOCHS[name]
    model = compiled(network(name), DENSE_RATE, epochs, len(data["train"][0]))
    model.fit(*data["train"], batch_size=BATCH, epochs=epochs, verbose=0)
    return model


def pruned_by(dense, ratio, data, name):
    """Return a pruned copy and by which factor it has fewer weights."""
    model = keras.models.clone_model(dense)
    model.set_weights(dense.get_weights())
    penalized(model, PENALTY)
    epochs = PRUNED_EPOCHS[name]
    compiled(model, PRUNED_RATE, epochs, len(data["train"][0]))
    prune = km.Prune(
        1 - 1 / ratio, scope="global", criterion="magnitude", include="kernel", end=0.7
    )
    model.fit(
        *data["train"],
        batch_size=BATCH,
        epochs=epochs,
        verbose=0,
        callbacks=[km.callbacks.Pruning(prune)],
    )
    kernels = [to_numpy(layer.kernel) for layer in model.layers if layer.weights]
    size = sum(kernel.size for kernel in kernels)
    return model, size / sum(np.count_nonzero(kernel) for kernel in kernels)


def penalized(model, strength):
    """Give every kernel a penalty on its squares."""
    for layer in model.layers:
        if layer.weights:
            layer.kernel.regularizer = keras.regularizers.L2(strength)


def error(model, data):
    return 100 * (1 - model.evaluate(*data["test"], verbose=0)[1])


if __name__ == "__main__":
    main()
