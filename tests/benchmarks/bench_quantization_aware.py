"""What quantization-aware training costs: time against the bare `fit` of the model.

Run by hand, on an idle machine, about 2 minutes a backend on 2 cores:

    python tests/benchmarks/bench_quantization_aware.py [--backend torch] [--jit 1] \
        [--network lstm]

The network for pictures has two blocks of convolution, BatchNormalization, ReLU and
pooling and two Dense layers, 106,000 weights in all, on pictures of 28x28x1 in batches
of 128; `lstm` has two LSTM layers of 64 units, on 28 rows of 28 numbers. As in
`bench_pruning.py` the fits run in threads of one process that take turns of ten steps;
what "bare again" is off 1 is the noise. "weights" rounds those alone, "int8" also what
the layers give each other. `--pquantml` takes a fit with the layers of PQuantML along,
in 8 bits and without pruning, where that is installed.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import threading
import warnings

from bench_monitors import (
    BACKENDS,
    STEPS,
    TURNS,
    WARM_UP,
    Turns,
    ratio,
    spread,
    turn_callback,
)

WAYS, PQUANTML = ("weights", "int8"), "PQuantML"
JITS = {"tensorflow": (False, True), "jax": (True,), "torch": (False,)}
BATCH = 128


def pictures(layers):
    blocks = []
    for width in (16, 32):
        blocks += [
            layers.Conv2D(width, 3, padding="same", use_bias=False),
            layers.BatchNormalization(),
            layers.ReLU(),
            layers.MaxPooling2D(),
        ]
    return [*blocks, layers.Flatten(), layers.Dense(64, activation="relu")]


def lstm(layers):
    reshape = layers.Reshape((28, 28))
    return [reshape, layers.LSTM(64, return_sequences=True), layers.LSTM(64)]


NETWORKS = {"pictures": pictures, "lstm": lstm}


def network(name, jit):
    import keras

    keras.utils.set_random_seed(1)
    body = NETWORKS[name](keras.layers)
    head = keras.layers.Dense(10)
    model = keras.Sequential([keras.Input((28, 28, 1)), *body, head])
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile("adam", loss, jit_compile=jit)
    return model


def network_of(way, name, jit):
    model = network(name, jit)
    if way in WAYS:
        import kerasmem as km

        rounds = way == "int8"
        return km.quantization_aware(model, km.Quantize("int8"), activations=rounds)
    if way != PQUANTML:
        return model
    from pquant import add_compression_layers, pdp_config

    config = pdp_config()
    config.pruning_parameters.enable_pruning = False
    made = add_compression_layers(model, config)
    made.compile("adam", model.loss, jit_compile=jit)
    return made


def run_case(network_name, jit, first, ways):
    import numpy as np

    warnings.simplefilter("ignore")
    names = ["bare", "bare again", *ways]
    names = names[first % len(names) :] + names[: first % len(names)]
    rng = np.random.default_rng(0)
    samples = BATCH * STEPS * TURNS
    x = rng.normal(size=(samples, 28, 28, 1)).astype("float32")
    y = rng.integers(0, 10, samples)
    turns = Turns(names)

    def fit(name):
        network_of(name, network_name, jit).fit(
            x,
            y,
            batch_size=BATCH,
            verbose=0,
            shuffle=False,
            callbacks=[turn_callback(turns, name)],
        )

    threads = [threading.Thread(target=fit, args=[name]) for name in names]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    found = {
        name: [
            ratio(figures[name], figures["bare"])
            for figures in (turns.seconds, turns.processor)
        ]
        for name in ("bare again", *ways)
    }
    bare = statistics.median(turns.seconds["bare"][WARM_UP:])
    print(json.dumps({"step_ms": 1e3 * bare / STEPS, "ratios": found}))


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--backend", choices=BACKENDS)
    parser.add_argument("--jit", type=int)
    parser.add_argument("--network", choices=NETWORKS, default="pictures")
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--pquantml", action="store_true")
    parser.add_argument("--child", type=int, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.child is not None:
        ways = (*WAYS, PQUANTML) if options.pquantml else WAYS
        run_case(options.network, bool(options.jit), options.child, ways)
        return
    for backend in BACKENDS if options.backend is None else (options.backend,):
        for jit in JITS[backend]:
            if options.jit in (None, int(jit)):
                processes = range(options.processes)
                show([child(backend, jit, i, options) for i in processes])


def child(backend, jit, first, options):
    command = [sys.executable, __file__, "--child", str(first), "--jit", str(int(jit))]
    command += ["--network", options.network, *["--pquantml"] * options.pquantml]
    environment = os.environ | {"KERAS_BACKEND": backend, "TF_CPP_MIN_LOG_LEVEL": "3"}
    run = subprocess.run(
        command, env=environment, stdout=subprocess.PIPE, text=True, check=True
    )
    return {"what": f"{options.network} {backend} jit={jit}", **json.loads(run.stdout)}


def show(found):
    step = spread([each["step_ms"] for each in found])
    print(f"{found[0]['what']}: bare step {step} ms")
    for name in found[0]["ratios"]:
        clock, processor = (
            spread([each["ratios"][name][i] for each in found]) for i in (0, 1)
        )
        print(f"  {name:10} x{clock}, processor x{processor}", flush=True)


if __name__ == "__main__":
    main()
