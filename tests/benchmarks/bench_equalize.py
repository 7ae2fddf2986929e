"""A MobileNet-style net with ill-scaled channels, rounded with and without equalizing.

The net is trained on Fashion-MNIST. Then channels are scaled by factors that the layers
before and behind a ReLU cancel: what the net computes stays, but with one scale for a
kernel most channels are rounded to nothing.

    python -m tests.benchmarks.bench_equalize fashion_mnist.npz [--epochs 3] [--seeds 0]
"""

import argparse

import keras
import numpy as np

import kerasmem as km
from kerasmem.graph.values import to_numpy

L = keras.layers
DECADES = 3.0
"""Channels differ by up to so many powers of ten."""

REPAIRED = [km.FoldBatchNorm(), km.Equalize()]
SCHEMES = {
    "int8, one scale": ("int8", "tensor"),
    "int8 per channel": ("int8", "channel"),
    "int8-static, one scale": ("int8-static", "tensor"),
    "int8-static per channel": ("int8-static", "channel"),
}


def mobile_net():
    """Return a net of depthwise and pointwise convolutions, 28 x 28 in, 10 out."""
    inputs = keras.Input((28, 28, 1))
    x = _normalized(L.Conv2D(16, 3, strides=2, padding="same", use_bias=False)(inputs))
    for filters, strides in ((32, 1), (64, 2), (64, 1)):
        depthwise = L.DepthwiseConv2D(
            3, strides=strides, padding="same", use_bias=False
        )
        x = _normalized(depthwise(x))
        x = _normalized(L.Conv2D(filters, 1, use_bias=False)(x))
    return keras.Model(inputs, L.Dense(10)(L.GlobalAveragePooling2D()(x)))


def _normalized(x):
    return L.ReLU()(L.BatchNormalization(momentum=0.9)(x))


def ill_scaled(model, seed):
    """Scale channels of `model` in place, so that what it computes stays."""
    random = np.random.default_rng(seed)
    layers = model.layers
    for number, norm in enumerate(layers):
        if isinstance(norm, L.BatchNormalization):
            factors = 10.0 ** (DECADES * random.uniform(-0.5, 0.5, norm.gamma.shape))
            for variable in (norm.gamma, norm.beta):
                variable.assign(to_numpy(variable) * factors)
            taker = next(x for x in layers[number:] if hasattr(x, "kernel"))
            kernel = taker.kernel
            kernel.assign(to_numpy(kernel) / factors[:, None])


def main():
    """Print accuracies and the share of the loss that equalizing recovers."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("path")
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--seeds", type=int, nargs="+", default=[0])
    parser.add_argument("--train", type=int, default=60_000, help="samples")
    options = parser.parse_args()
    with np.load(options.path) as arrays:
        parts = {name: arrays[name] for name in arrays.files}
    x, xt = (parts[n][..., None].astype("float32") / 255 for n in ("x_train", "x_test"))
    y, yt = (parts[n].astype("int32") for n in ("y_train", "y_test"))
    x, y = x[: options.train], y[: options.train]
    for seed in options.seeds:
        keras.utils.set_random_seed(seed)
        model = mobile_net()
        loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
        model.compile("adam", loss, metrics=["accuracy"])
        model.fit(x, y, batch_size=128, epochs=options.epochs, verbose=2)
        ill_scaled(model, seed)
        _show(model, (x[:512], y[:512]), (xt, yt), seed)


def _show(model, data, test, seed):
    exact = 100 * model.evaluate(*test, verbose=0, batch_size=500)[1]
    print(f"seed {seed}: float, ill-scaled: {exact:.2f} %", flush=True)
    for name, (scheme, granularity) in SCHEMES.items():
        rounded = km.Quantize(scheme, granularity=granularity)
        harmed, rescued = (
            _accuracy(model, [*steps, rounded], data, test)
            for steps in ([km.FoldBatchNorm()], REPAIRED)
        )
        lost = exact - harmed
        share = f"{(rescued - harmed) / lost:.1%}" if lost > 0.5 else "-"
        print(
            f"  {name}: {harmed:.2f} %, equalized {rescued:.2f} %, recovered {share}",
            flush=True,
        )


def _accuracy(model, steps, data, test):
    result = km.compress(model, steps, data=data).model
    return 100 * result.evaluate(*test, verbose=0, batch_size=500)[1]


if __name__ == "__main__":
    main()
