"""What int8 costs in accuracy, after training and with a training that sees it.

Run by hand, 5 to 15 minutes a network and seed on one core:

    python tests/benchmarks/bench_quantization_aware_accuracy.py fashion_mnist.npz \
        [--network mobile] [--epochs 4] [--aware-epochs 2] [--schemes int4 ...]

A float network is trained; then, from the same weights, each scheme is applied as it
is, and after a training that sees it. The float network gets as many epochs more, so
that none wins by training longer. The static ones are calibrated on 512 images, or have
the ranges of the training that saw them. `lstm` and `transformer` read the rows of an
image, or squares of 4 x 4, as a sequence.
"""

import argparse
import os

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import keras
import numpy as np

import kerasmem as km

L = keras.layers
CALIBRATION = 512
SCHEMES = {
    "int8": km.Quantize("int8"),
    "int8 per tensor": km.Quantize("int8", granularity="tensor"),
    "static": km.Quantize("int8-static"),
    "static per tensor": km.Quantize("int8-static", granularity="tensor"),
    "int4": km.Quantize("int4"),
    "int4 per tensor": km.Quantize("int4", granularity="tensor"),
}


def normed(x, layer, activation=True):
    x = L.BatchNormalization(momentum=0.9)(layer(x))
    return L.ReLU()(x) if activation else x


def cnn(x):
    for width in (16, 32):
        x = normed(x, L.Conv2D(width, 3, padding="same", use_bias=False))
        x = L.MaxPooling2D()(x)
    return L.Dense(64, activation="relu")(L.Flatten()(x))


def resnet(x):
    x = normed(x, L.Conv2D(16, 3, 2, padding="same", use_bias=False))
    for width, stride in ((16, 1), (32, 2), (64, 2)):
        y = normed(x, L.Conv2D(width, 3, stride, padding="same", use_bias=False))
        y = normed(y, L.Conv2D(width, 3, padding="same", use_bias=False), False)
        if stride > 1:
            x = normed(x, L.Conv2D(width, 1, stride, use_bias=False), False)
        x = L.ReLU()(L.Add()([x, y]))
    return L.GlobalAveragePooling2D()(x)


def mobile(x):
    x = normed(x, L.Conv2D(16, 3, 2, padding="same", use_bias=False))
    for width, stride in ((32, 1), (64, 2), (64, 1), (128, 2)):
        x = normed(x, L.DepthwiseConv2D(3, stride, padding="same", use_bias=False))
        x = normed(x, L.Conv2D(width, 1, use_bias=False))
    return L.GlobalAveragePooling2D()(x)


def lstm(x):
    return L.LSTM(64)(L.Reshape((28, 28))(x))


def transformer(x):
    x = L.Reshape((49, 32))(L.Conv2D(32, 4, 4)(x))
    positions = L.Embedding(49, 32)(keras.ops.arange(49))
    x = x + positions
    for _ in range(2):
        y = L.LayerNormalization()(x)
        x = x + L.MultiHeadAttention(4, 8)(y, y)
        y = L.Dense(64, activation="gelu")(L.LayerNormalization()(x))
        x = x + L.Dense(32)(y)
    return L.GlobalAveragePooling1D()(L.LayerNormalization()(x))


BODIES = {body.__name__: body for body in (cnn, resnet, mobile, lstm, transformer)}


def network(name):
    inputs = keras.Input((28, 28, 1))
    return keras.Model(inputs, L.Dense(10)(BODIES[name](inputs)))


def compiled(model, optimizer="sgd"):
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(optimizer, loss, metrics=["accuracy"])
    return model


def trained(model, data, epochs, rate, *callbacks):
    steps = epochs * -(-len(data[0]) // 128)
    schedule = keras.optimizers.schedules.CosineDecay(rate, steps)
    compiled(model, keras.optimizers.Adam(schedule)).fit(
        *data[:2], batch_size=128, epochs=epochs, verbose=0, callbacks=[*callbacks]
    )


def accuracy(model, data):
    return 100 * compiled(model).evaluate(*data[2:], batch_size=500, verbose=0)[1]


def load(path, samples):
    with np.load(path) as file:
        x, y, xt, yt = (file[key] for key in ("x_train", "y_train", "x_test", "y_test"))
    x, xt = (v[..., None].astype("float32") / 255 for v in (x, xt))
    return x[:samples], y[:samples], xt, yt


def quantized(model, choice, data):
    return km.compress(model, choice, data=data[0][:CALIBRATION], verbose=0).model


def run(options, seed):
    keras.utils.set_random_seed(seed)
    data = load(options.data, options.samples)
    model = network(options.network)
    trained(model, data, options.epochs, 2e-3)
    start = model.get_weights()

    trained(model, data, options.aware_epochs, 5e-4)
    print(
        f"seed {seed} {options.network} float {accuracy(model, data):.2f}", flush=True
    )
    weights = model.get_weights()
    for name in options.schemes:
        choice = SCHEMES[name]
        model.set_weights(weights)
        after = before = accuracy(quantized(model, choice, data), data)
        if options.aware_epochs:
            model.set_weights(start)
            aware = km.quantization_aware(model, choice)
            frozen = km.callbacks.FreezeBatchNorm(0.5)
            trained(aware, data, options.aware_epochs, 5e-4, frozen)
            after = accuracy(quantized(aware, choice, data), data)
        print(f"  {name:17} {before:.2f}, aware {after:.2f}", flush=True)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("data")
    parser.add_argument("--network", choices=BODIES, default="cnn")
    parser.add_argument("--schemes", nargs="+", choices=SCHEMES, default=[*SCHEMES])
    parser.add_argument("--epochs", type=int, default=4)
    parser.add_argument("--aware-epochs", type=int, default=2)
    parser.add_argument("--samples", type=int, default=60000)
    parser.add_argument("--seeds", type=int, nargs="+", default=[0])
    options = parser.parse_args()
    for seed in options.seeds:
        run(options, seed)


if __name__ == "__main__":
    main()
