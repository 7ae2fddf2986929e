"""ResNet-20 on Fashion-MNIST with 2.1 times fewer multiplications.

Run by hand, with the path of Fashion-MNIST as `.npz`, half an hour a seed on 2 cores:

    python -m tests.benchmarks.bench_resnet_channels fashion_mnist.npz [--seeds 0 1 2]

The network is that of He et al., "Deep residual learning for image recognition", 2016,
for small images. It is trained, loses channels at one blow and learns from the network
that it was (`--recover fit`: from the labels alone). Because the narrow network sees
more epochs than the base has, the base is also trained on for as many. The accuracy is
that of the last epoch on the 10,000 test images; the time is that of the float32
networks, one batch at a time. `--bases` names a folder that keeps trained bases.
"""

import argparse
import math
import statistics
import tempfile
from pathlib import Path

import keras
import numpy as np
from keras import layers

import kerasmem as km
from kerasmem.compression.measure import latencies

FEWER = 2.1
BATCH = 128
EPOCHS, EPOCHS_AFTER = 8, 8
RATE, RATE_AFTER = 2e-3, 1e-3  # of learning, at the start of the cosine
TEMPERATURE, HARD_WEIGHT = 4.0, 0.3
DECAY = 0.02  # of weights


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("data")
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--dtype-policy", default="mixed_bfloat16")
    parser.add_argument("--without-base", action="store_true")
    parser.add_argument("--recover", choices=("distill", "fit"), default="distill")
    parser.add_argument("--bases", type=Path)
    options = parser.parse_args()
    data = images(options.data)
    found = {"base": [], "pruned": [], "base, trained on": []}
    for seed in options.seeds:
        keras.utils.set_random_seed(seed)
        keras.config.set_dtype_policy(options.dtype_policy)
        base = base_of(seed, data, options.bases)
        found["base"].append(accuracy(base, data))
        pruned = km.compress(
            base,
            km.PruneChannels(
                1 - 1 / FEWER,
                of="multiplications",
                criterion="group",
                scope="isomorphic",
            ),
        ).model
        at_once = accuracy(compiled(pruned, RATE, 1), data)
        if options.recover == "fit":
            trained(pruned, data, EPOCHS_AFTER, RATE_AFTER)
        else:
            pruned = taught(base, pruned, data)
        found["pruned"].append(accuracy(pruned, data))
        fewer = multiplications(base) / multiplications(pruned)
        print(
            f"seed {seed}: base {found['base'][-1]:.2f} %; {fewer:.3f}x fewer "
            f"multiplications: {at_once:.2f} % at once, {found['pruned'][-1]:.2f} % "
            "after training",
            flush=True,
        )
        print(f"  milliseconds a batch: {times(base, pruned)}", flush=True)
        if not options.without_base:
            trained(base, data, EPOCHS_AFTER, RATE_AFTER)
            found["base, trained on"].append(accuracy(base, data))
            print(f"  base, trained on: {found['base, trained on'][-1]:.2f} %")
    for name, figures in found.items():
        if figures:
            print(f"mean, {name}: {statistics.mean(figures):.2f} %")


def images(path):
    with np.load(path) as arrays:
        return {
            part: (
                (arrays[f"x_{part}"] / np.float32(255.0))[..., None].astype("float32"),
                arrays[f"y_{part}"].astype("int32"),
            )
            for part in ("train", "test")
        }


def resnet20():
    def convolution(x, width, size=3, strides=1):
        x = layers.Conv2D(
            width,
            size,
            strides,
            padding="same",
            use_bias=False,
            kernel_initializer="he_normal",
        )(x)
        return layers.BatchNormalization(momentum=0.9)(x)

    inputs = keras.Input((28, 28, 1))
    x = layers.ReLU()(convolution(inputs, 16))
    for stage, width in enumerate((16, 32, 64)):
        for block in range(3):
            strides = 2 if stage and not block else 1
            y = layers.ReLU()(convolution(x, width, 3, strides))
            y = convolution(y, width)
            if strides > 1:
                x = convolution(x, width, 1, strides)
            x = layers.ReLU()(layers.Add()([x, y]))
    x = layers.GlobalAveragePooling2D()(x)
    return keras.Model(inputs, layers.Dense(10, dtype="float32")(x))


def base_of(seed, data, folder):
    """Return the trained base, from the folder if it is there already."""
    path = folder / f"resnet20-{seed}.keras" if folder else None
    if path and path.exists():
        return keras.models.load_model(path)
    base = trained(resnet20(), data, EPOCHS, RATE)
    if path:
        km.save_model(base, path)
    return base


def taught(base, pruned, data):
    compiled(pruned, RATE_AFTER, steps_of(data, EPOCHS_AFTER))
    with tempfile.TemporaryDirectory() as cache:
        return km.distill(
            base,
            pruned,
            data["train"],
            epochs=EPOCHS_AFTER,
            batch_size=BATCH,
            temperature=TEMPERATURE,
            hard_weight=HARD_WEIGHT,
            cache=cache,
            verbose=2,
        )


def steps_of(data, epochs):
    return epochs * -(-len(data["train"][0]) // BATCH)


def compiled(model, rate, steps):
    model.compile(
        keras.optimizers.AdamW(
            keras.optimizers.schedules.CosineDecay(rate, steps), weight_decay=DECAY
        ),
        keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        metrics=["accuracy"],
    )
    return model


def trained(model, data, epochs, rate):
    compiled(model, rate, steps_of(data, epochs))
    model.fit(*data["train"], batch_size=BATCH, epochs=epochs, verbose=2)
    return model


def accuracy(model, data):
    return 100 * model.evaluate(*data["test"], batch_size=500, verbose=0)[1]


def multiplications(model):
    """Return the multiplications with kernels of one sample, by the layers' shapes."""
    return sum(
        math.prod(layer.kernel.shape) * math.prod(layer.output.shape[1:-1])
        for layer in model.layers
        if layer.weights and hasattr(layer, "kernel")
    )


def times(base, pruned):
    """Return the time of a batch of 1 and of 64 images through both, in words."""
    keras.config.set_dtype_policy("float32")
    both = [in_float32(base), in_float32(pruned)]
    texts = []
    for size in (1, 64):
        data = np.zeros((size, 28, 28, 1), "float32")
        before, after = (
            each.milliseconds for each in latencies(both, data, batch_size=size)
        )
        texts.append(f"{size} images {before:.2f} and {after:.2f}")
    return ", ".join(texts)


def in_float32(model):
    copy = keras.models.clone_model(
        model, clone_function=lambda layer: type(layer).from_config(plain(layer))
    )
    copy.set_weights(model.get_weights())
    return copy


def plain(layer):
    return {**layer.get_config(), "dtype": "float32"}


if __name__ == "__main__":
    main()
