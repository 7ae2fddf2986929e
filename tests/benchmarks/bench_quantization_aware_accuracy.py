"""What quantization-aware training wins back, on Fashion-MNIST.

Run by hand, about 15 minutes a network on 2 cores:

    KERAS_BACKEND=jax python tests/benchmarks/bench_quantization_aware_accuracy.py \
        fashion_mnist.npz [--network mobile] [--epochs 4] [--aware-epochs 2]

A float network is trained; then, from the same weights, each scheme is applied as it
is, and after a training that sees it. The float network gets as many epochs more, so
that none wins by training longer. "activations" stands for int8 per channel with
activations in int8, measured in the training's own validation.
"""

import argparse

import keras
import numpy as np

import kerasmem as km

L = keras.layers
SCHEMES = {
    "int8": km.Quantize("int8"),
    "int8 per tensor": km.Quantize("int8", granularity="tensor"),
    "int4": km.Quantize("int4"),
    "int4 per tensor": km.Quantize("int4", granularity="tensor"),
}


def normed(x, layer):
    return L.ReLU()(L.BatchNormalization()(layer(x)))


def network(name):
    inputs = x = keras.Input((28, 28, 1))
    if name == "cnn":
        for width in (16, 32):
            x = normed(x, L.Conv2D(width, 3, padding="same", use_bias=False))
            x = L.MaxPooling2D()(x)
        x = L.Dense(64, activation="relu")(L.Flatten()(x))
    else:
        x = normed(x, L.Conv2D(16, 3, 2, padding="same", use_bias=False))
        for width, stride in ((32, 1), (64, 2), (64, 1), (128, 2)):
            x = normed(x, L.DepthwiseConv2D(3, stride, padding="same", use_bias=False))
            x = normed(x, L.Conv2D(width, 1, use_bias=False))
        x = L.GlobalAveragePooling2D()(x)
    return keras.Model(inputs, L.Dense(10)(x))


def trained(model, data, epochs, rate, *callbacks):
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    steps = epochs * len(data[0]) // 128
    schedule = keras.optimizers.schedules.CosineDecay(rate, steps)
    model.compile(keras.optimizers.Adam(schedule), loss, metrics=["accuracy"])
    return model.fit(
        *data[:2],
        batch_size=128,
        epochs=epochs,
        verbose=0,
        validation_data=data[2:],
        callbacks=list(callbacks),
    ).history


def accuracy(model, data):
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile("sgd", loss, metrics=["accuracy"])
    return 100 * model.evaluate(*data[2:], batch_size=500, verbose=0)[1]


def load(path, samples):
    with np.load(path) as file:
        x, y, xt, yt = (file[key] for key in ("x_train", "y_train", "x_test", "y_test"))
    x, xt = (v[..., None].astype("float32") / 255 for v in (x, xt))
    return x[:samples], y[:samples], xt, yt


def run(options, seed):
    keras.utils.set_random_seed(seed)
    data = load(options.data, options.samples)
    model = network(options.network)
    trained(model, data, options.epochs, 2e-3)
    start = model.get_weights()

    def again(*callbacks):
        model.set_weights(start)
        return trained(model, data, options.aware_epochs, 5e-4, *callbacks)

    again()
    print(
        f"seed {seed} {options.network} float {accuracy(model, data):.2f}", flush=True
    )
    weights = model.get_weights()
    for name, choice in SCHEMES.items():
        model.set_weights(weights)
        before = accuracy(km.compress(model, choice).model, data)
        again(km.callbacks.QuantizationAware(choice))
        after = accuracy(km.compress(model, choice).model, data)
        print(f"  {name:16} {before:.2f}, aware {after:.2f}", flush=True)
    aware = km.callbacks.QuantizationAware(km.Quantize("int8"), activations=True)
    after = 100 * again(aware)["val_accuracy"][-1]
    print(f"  activations      aware {after:.2f}", flush=True)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("data")
    parser.add_argument("--network", choices=("cnn", "mobile"), default="cnn")
    parser.add_argument("--epochs", type=int, default=4)
    parser.add_argument("--aware-epochs", type=int, default=2)
    parser.add_argument("--samples", type=int, default=60000)
    parser.add_argument("--seeds", type=int, nargs="+", default=[0])
    options = parser.parse_args()
    for seed in options.seeds:
        run(options, seed)


if __name__ == "__main__":
    main()
