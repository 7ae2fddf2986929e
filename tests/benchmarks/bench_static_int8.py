"""int8-static: accuracy of two nets on Fashion-MNIST, time to build, time to run.

Run by hand, about 20 minutes on 2 cores, or 1 minute with `--speed`:

    python -m tests.benchmarks.bench_static_int8 [fashion_mnist.npz] [--epochs 3]
    python -m tests.benchmarks.bench_static_int8 --speed

The first prints the accuracy of floats and of int8 after a calibration on 512 images,
and the latency of the LiteRT files on one thread. Without a path the data comes from
`keras.datasets`. The second prints the CPU time to quantize 320 Dense layers, by
`"int8"` and by `"int8-static"`, and the time of a batch of a ResNet of CIFAR's size in
Keras, float and then int8-static.
"""

import argparse
import os
import statistics
import tempfile
import time
from pathlib import Path

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import keras
import numpy as np

import kerasmem as km
from kerasmem.compression.recipe import apply_technique
from kerasmem.compression.technique import Context
from kerasmem.demo.recipe import compile_classifier, falling_rate, residual_network
from kerasmem.extras.litert.interpreters import LiteRT

L = keras.layers
CALIBRATION, RUNS = 512, 2000


def mobile_network(shape, classes):
    """Return a classifier of inverted residuals, as in MobileNetV2."""

    def normalized(x, activation=True):
        x = L.BatchNormalization(momentum=0.9)(x)
        return L.ReLU(6.0)(x) if activation else x

    def block(x, width, strides):
        before, inner = x, 4 * x.shape[-1]
        x = normalized(L.Conv2D(inner, 1, use_bias=False)(x))
        x = L.DepthwiseConv2D(3, strides=strides, padding="same", use_bias=False)(x)
        x = L.Conv2D(width, 1, use_bias=False)(normalized(x))
        x = normalized(x, activation=False)
        return L.Add()([before, x]) if x.shape == before.shape else x

    images = keras.Input(shape, name="images")
    x = L.Rescaling(1 / 127.5, offset=-1)(images)
    x = L.Conv2D(16, 3, strides=2, padding="same", use_bias=False)(x)
    x = normalized(x)
    for width, strides in ((16, 1), (24, 2), (24, 1), (32, 1), (32, 1)):
        x = block(x, width, strides)
    x = normalized(L.Conv2D(128, 1, use_bias=False)(x))
    x = L.GlobalAveragePooling2D()(x)
    return keras.Model(images, L.Dense(classes, name="logits")(x))


def residual(shape, classes):
    return residual_network(shape, classes, widths=(16, 16, 32, 64))


NETS = {"resnet": residual, "mobilenet": mobile_network}


def images(path):
    if path:
        found = np.load(path)
        data = [(found[f"x_{s}"], found[f"y_{s}"]) for s in ("train", "test")]
    else:
        data = keras.datasets.fashion_mnist.load_data()
    return [(x[..., None].astype("float32"), y) for x, y in data]


def codes_of(file, name, x):
    scale, zero = file.inputs[name]["quantization"]
    codes = np.clip(np.rint(x / np.float32(scale)) + zero, -128, 127)
    return codes.astype("int8")


def latencies(files, x):
    """Return the median seconds of a call of each file: one image, thread, XNNPACK."""
    calls, taken = {}, {kind: [] for kind in files}
    for kind, content in files.items():
        file = LiteRT(content)
        name, detail = next(iter(file.inputs.items()))
        one = codes_of(file, name, x[:1]) if detail["dtype"] == np.int8 else x[:1]
        calls[kind] = file, {name: one}
    for _ in range(RUNS):  # in turns: whatever else runs slows both
        for kind, (file, given) in calls.items():
            start = time.perf_counter()
            file(given)
            taken[kind].append(time.perf_counter() - start)
    return {kind: statistics.median(times) for kind, times in taken.items()}


def study(name, train, test, epochs):
    keras.utils.set_random_seed(0)
    model = NETS[name](train[0].shape[1:], 10)
    compile_classifier(model, 2e-3)
    rate = falling_rate(2e-3, epochs)
    model.fit(*train, epochs=epochs, batch_size=128, callbacks=[rate], verbose=2)
    accuracy = {"float": model.evaluate(*test, 500, verbose=0)[1]}
    results = {}
    for method in ("min-max", "percentile", "mse"):
        choice = km.Quantize("int8-static", calibration=km.Calibration(method))
        results[method] = km.compress(model, choice, data=train[0][:CALIBRATION])
        small = results[method].model
        accuracy[method] = small.evaluate(*test, 500, verbose=0)[1]
    print(name, {key: round(value, 4) for key, value in accuracy.items()})
    result = results["min-max"]
    with tempfile.TemporaryDirectory() as folder:
        files = {}
        for kind, made, scheme in (
            ("float", km.CompressionResult(model, None, ()), "float"),
            ("int8", result, None),
        ):
            path = Path(folder, f"{kind}.tflite")
            made.export(path, scheme=scheme, batch_size=1, samples=test[0])
            files[kind] = path.read_bytes()
    sizes = {kind: len(content) for kind, content in files.items()}
    taken = latencies(files, test[0])
    print(
        f"  files {sizes}; {taken['float'] * 1e6:.0f} us a call with floats, ", end=""
    )
    print(f"{taken['int8'] * 1e6:.0f} with int8: {taken['float'] / taken['int8']:.2f}x")


def build_seconds(scheme, model, x):
    """Return the CPU seconds of a compression."""
    start = time.process_time()
    apply_technique(km.Quantize(scheme), model, Context(x))
    return time.process_time() - start


def batch_seconds(models, x, runs=20):
    """Return the median seconds of `predict_on_batch` of each model, in turns."""
    taken = [[] for _ in models]
    for _ in range(runs + 2):
        for model, times in zip(models, taken, strict=True):
            start = time.perf_counter()
            model.predict_on_batch(x)
            times.append(time.perf_counter() - start)
    return [statistics.median(times[2:]) for times in taken]


def speed():
    """Print the time to build and the time to run."""
    random = np.random.default_rng(0)
    inputs = y = keras.Input((8,))
    for _ in range(320):
        y = L.Dense(8, activation="relu")(y)
    model = keras.Model(inputs, y)
    x = random.normal(size=(64, 8)).astype("float32")
    build_seconds("int8-static", keras.Sequential([keras.Input((8,)), L.Dense(8)]), x)
    cases = (("int8", None), ("int8", x), ("int8-static", x))
    for scheme, data in cases:
        seconds = build_seconds(scheme, model, data)
        print(f"{scheme}, {'no ' * (data is None)}data: {seconds:.2f} s of CPU")
    network = residual_network((32, 32, 3), 10, widths=(16, 16, 32, 64))
    x = random.normal(size=(64, 32, 32, 3)).astype("float32")
    small = km.compress(network, km.Quantize("int8-static"), data=x, verbose=0).model
    floats, rounded = batch_seconds([network, small], x)
    print(f"batch of 64: {floats * 1e3:.1f} ms float, {rounded * 1e3:.1f} int8-static")


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("path", nargs="?")
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--speed", action="store_true")
    parser.add_argument("--nets", nargs="+", default=list(NETS))
    options = parser.parse_args()
    if options.speed:
        speed()
        return
    train, test = images(options.path)
    for name in options.nets:
        study(name, train, test, options.epochs)


if __name__ == "__main__":
    main()
