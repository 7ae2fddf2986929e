"""Adam8bit and Adafactor against Keras's: what they keep, learn and cost in time.

Run by hand:

    python tests/benchmarks/bench_optimizers.py state
    python tests/benchmarks/bench_optimizers.py accuracy fashion_mnist.npz [--seeds 3]
    python tests/benchmarks/bench_optimizers.py time [--backend jax] [--case cnn]

`state`: bytes of the slots, read off the variables. `accuracy`: a network with some
large tensors on Fashion-MNIST, the learning rate falling to zero along a cosine, once
with each optimizer per seed (same start, same batches); test accuracy after the last
epoch. `time`: one `fit` per optimizer and two of Adam, in threads of one process that
take turns of ten steps, as in `bench_monitors`; the median ratio over the turns, in
several processes.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import threading
import time

from bench_monitors import BACKENDS, SHAPES, STEPS, Turns, network, turn_callback

TURNS, WARM_UP = 20, 3
CASES = [
    (case, backend, jit)
    for backend in BACKENDS
    for case in ("cnn", "mlp")
    for jit in {"tensorflow": (False, True), "jax": (True,), "torch": (False,)}[backend]
]


def optimizers(rate=1e-3):
    import keras

    from kerasmem.optimizers import Adafactor, Adam8bit

    adam = keras.optimizers.Adam
    return {
        "Adam": lambda: adam(rate),
        "Adam again": lambda: adam(rate),  # what it is off 1 is the noise
        "Adam8bit": lambda: Adam8bit(rate),
        "Keras's Adafactor": lambda: keras.optimizers.Adafactor(rate),
        "Adafactor": lambda: Adafactor(rate),
    }


# State


def transformer(width=256, blocks=4, heads=8, words=8000, length=64):
    import keras

    layers = keras.layers
    tokens = keras.Input((length,), dtype="int32")
    x = layers.Embedding(words, width)(tokens)
    for _ in range(blocks):
        x = layers.LayerNormalization()(
            x + layers.MultiHeadAttention(heads, width // heads)(x, x)
        )
        y = layers.Dense(4 * width, activation="gelu")(x)
        x = layers.LayerNormalization()(x + layers.Dense(width)(y))
    return keras.Model(tokens, layers.Dense(words)(x))


def show_state():
    import keras

    models = {
        "transformer": transformer(),
        "ResNet50": keras.applications.ResNet50(weights=None),
        "MobileNetV2": keras.applications.MobileNetV2(weights=None),
        "mlp": network("mlp"),
        "cnn": network("cnn"),
    }
    for name, model in models.items():
        weights = sum(v.value.numpy().nbytes for v in model.trainable_variables)
        print(f"{name}: {weights / 1e6:.1f} MB of weights")
        for kind, make in optimizers().items():
            optimizer = make()
            optimizer.build(model.trainable_variables)
            state = sum(v.numpy().nbytes for v in optimizer.variables)
            print(
                f"  {kind:18} {state:>11,} bytes, {state / weights:.4f} of the weights"
            )


# Accuracy


def classifier(kind):
    import keras

    layers = keras.layers
    body = {
        "cnn": [
            layers.Reshape((28, 28, 1)),
            layers.Conv2D(16, 3, activation="relu"),
            layers.MaxPooling2D(),
            layers.Conv2D(32, 3, activation="relu"),
            layers.MaxPooling2D(),
            layers.Flatten(),
            layers.Dropout(0.25),
            layers.Dense(64, activation="relu"),
        ],
        "mlp": [
            layers.Flatten(),
            layers.Dense(256, activation="relu"),
            layers.Dropout(0.25),
            layers.Dense(128, activation="relu"),
        ],
    }[kind]
    return keras.Sequential([keras.Input((28, 28)), *body, layers.Dense(10)])


def show_accuracy(options):
    import keras
    import numpy as np

    data = np.load(options.data)
    x, x_test = (data[k].astype("float32") / 255 for k in ("x_train", "x_test"))
    y, y_test = data["y_train"], data["y_test"]
    steps = options.epochs * -(-len(x) // options.batch_size)
    schedule = keras.optimizers.schedules.CosineDecay(2e-3, steps)
    found = {name: [] for name in options.optimizers}
    for seed in range(options.seeds):
        for name in options.optimizers:
            keras.utils.set_random_seed(seed)
            model = classifier(options.case)
            model.compile(
                optimizers(schedule)[name](),
                keras.losses.SparseCategoricalCrossentropy(from_logits=True),
                metrics=["accuracy"],
                jit_compile=options.jit,
            )
            model.fit(
                x, y, batch_size=options.batch_size, epochs=options.epochs, verbose=0
            )
            right = 100 * model.evaluate(x_test, y_test, 500, verbose=0)[1]
            found[name].append(right)
            print(f"seed {seed} {name:18} {right:.2f} %", flush=True)
    for name, rights in found.items():
        print(f"{name:18} mean {statistics.mean(rights):.2f} %")


# Time


def run_case(case, jit, first):
    import keras
    import numpy as np

    makers = optimizers()
    del makers["Keras's Adafactor"]  # in time it is its neighbors' equal
    names = list(makers)
    names = names[first % len(names) :] + names[: first % len(names)]
    shape, batch_size = SHAPES[case]
    rng = np.random.default_rng(0)
    samples = batch_size * STEPS * TURNS
    x = rng.normal(size=(samples, *shape)).astype("float32")
    y = rng.integers(0, 10, samples)
    turns = Turns(names)

    def fit(name):
        keras.utils.set_random_seed(1)
        model = network(case)
        loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
        model.compile(makers[name](), loss, jit_compile=jit)
        model.fit(
            x,
            y,
            batch_size=batch_size,
            verbose=0,
            shuffle=False,
            callbacks=[turn_callback(turns, name)],
        )

    threads = [threading.Thread(target=fit, args=[name]) for name in names]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    seconds = {name: turns.seconds[name][WARM_UP:] for name in makers}
    found = {"step_ms": 1e3 * statistics.median(seconds["Adam"]) / STEPS}
    found["ratios"] = {
        name: statistics.median(
            a / b for a, b in zip(seconds[name], seconds["Adam"], strict=True)
        )
        for name in list(makers)[1:]
    }
    print(json.dumps(found))


def show_time(options):
    for case, backend, jit in CASES:
        pairs = [(options.case, case), (options.backend, backend), (options.jit, jit)]
        if any(asked not in (None, this) for asked, this in pairs):
            continue
        start = time.perf_counter()
        found = [child(case, backend, jit, i) for i in range(options.processes)]
        step = statistics.median(each["step_ms"] for each in found)
        took = time.perf_counter() - start
        print(f"{backend} {case} jit={jit}: Adam {step:.2f} ms a step ({took:.0f} s)")
        for name in found[0]["ratios"]:
            ratios = [each["ratios"][name] for each in found]
            low, high = min(ratios), max(ratios)
            median = statistics.median(ratios)
            print(f"  {name:18} x{median:.3f} ({low:.3f} to {high:.3f})", flush=True)


def child(case, backend, jit, first):
    command = [sys.executable, __file__, "child", case, str(int(jit)), str(first)]
    environment = os.environ | {"KERAS_BACKEND": backend, "TF_CPP_MIN_LOG_LEVEL": "3"}
    run = subprocess.run(
        command, env=environment, stdout=subprocess.PIPE, text=True, check=True
    )
    return json.loads(run.stdout.splitlines()[-1])


def parsed():
    parser = argparse.ArgumentParser()
    commands = parser.add_subparsers(dest="command", required=True)
    commands.add_parser("state")
    accuracy = commands.add_parser("accuracy")
    accuracy.add_argument("data")
    accuracy.add_argument("--case", choices=["cnn", "mlp"], default="mlp")
    accuracy.add_argument("--seeds", type=int, default=3)
    accuracy.add_argument("--epochs", type=int, default=8)
    accuracy.add_argument("--batch-size", type=int, default=128)
    accuracy.add_argument("--jit", type=lambda text: bool(int(text)), default=False)
    accuracy.add_argument("--optimizers", nargs="+", default=["Adam", "Adam8bit"])
    timed = commands.add_parser("time")
    timed.add_argument("--backend", choices=BACKENDS)
    timed.add_argument("--case", choices=SHAPES)
    timed.add_argument("--jit", type=lambda text: bool(int(text)))
    timed.add_argument("--processes", type=int, default=3)
    one = commands.add_parser("child")
    one.add_argument("case")
    one.add_argument("jit", type=int)
    one.add_argument("first", type=int)
    return parser.parse_args()


def main():
    options = parsed()
    if options.command == "state":
        show_state()
    elif options.command == "accuracy":
        show_accuracy(options)
    elif options.command == "time":
        show_time(options)
    else:
        run_case(options.case, bool(options.jit), options.first)


if __name__ == "__main__":
    main()
