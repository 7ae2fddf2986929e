"""What the monitors cost: time against the bare `fit` of the same model.

Run by hand, on an idle machine, about 3 minutes a case on 2 cores:

    python tests/benchmarks/bench_monitors.py [--backend torch] [--case cnn]

One `fit` per way of watching, and two of none, run in threads of one process that take
turns of ten steps: what disturbs the machine disturbs them all, and each turn has one
sampled step of `every=10`. A ratio is the median over the turns of their time over that
of the bare turn beside it, once of the clock, once of the processor time. Where a
model's memory happens to lie moves its speed by a few percent for as long as the
process lives; so there are several processes, in each of which another way comes first,
and what is printed is the median, lowest and highest of their ratios. What "bare again"
is off 1 is the noise. Then how long the monitors' own hooks took, per epoch.

With `--first`, the processor time of a `fit` of one step, which compiles it: pairs of
bare and of both monitors in turns, each with a new model, after one pair that warms up.
`resnet50` takes about 5 processor minutes for three pairs.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import threading
import time
import warnings

BACKENDS = ("tensorflow", "jax", "torch")
CASES = [  # name, backend, jit; JAX without jit runs op by op, torch.compile aside
    (name, backend, jit)
    for backend in BACKENDS
    for name in ("cnn", "mlp", "bert", "resnet50")
    for jit in {"tensorflow": (False, True), "jax": (True,), "torch": (False,)}[backend]
]
STEPS, TURNS, WARM_UP = 10, 60, 3  # of a turn; of a fit; turns that do not count


class Turns:
    """Lets the threads of several fits run some steps each, in turn."""

    def __init__(self, names):
        self.names = names
        self.seconds = {name: [] for name in names}
        self.processor = {name: [] for name in names}
        self._next = 0
        self._changed = threading.Condition()

    def wait(self, name):
        with self._changed:
            self._changed.wait_for(lambda: self._whose() == name)
        self._start = time.perf_counter(), time.process_time()

    def pass_on(self, name):
        self.seconds[name].append(time.perf_counter() - self._start[0])
        self.processor[name].append(time.process_time() - self._start[1])
        with self._changed:
            self._next += 1
            self._changed.notify_all()

    def _whose(self):
        # There and back again, so that no one always follows the same one.
        order, place = divmod(self._next, len(self.names))
        return self.names[place if order % 2 == 0 else -1 - place]


def network(name):
    import keras

    layers = keras.layers
    if name == "resnet50":
        return keras.applications.ResNet50(
            weights=None,
            input_shape=(64, 64, 3),
            classes=10,
            classifier_activation=None,
        )
    if name == "bert":
        return bert()
    if name == "small":
        return keras.Sequential([keras.Input((8,)), layers.Dense(10)])
    if name == "mlp":
        sizes = (1024, 1024)
        return keras.Sequential(
            [
                keras.Input((784,)),
                *(layers.Dense(size, activation="relu") for size in sizes),
                layers.Dense(10),
            ]
        )
    blocks = []
    for width in (32, 64, 128):
        for _ in range(2):
            blocks += [
                layers.Conv2D(width, 3, padding="same", use_bias=False),
                layers.BatchNormalization(),
                layers.ReLU(),
            ]
        blocks.append(layers.MaxPooling2D())
    return keras.Sequential(
        [
            keras.Input((16, 16, 3)),
            *blocks,
            layers.GlobalAveragePooling2D(),
            layers.Dense(10),
        ]
    )


def bert():
    from keras_hub import models

    backbone = models.BertBackbone(
        vocabulary_size=30_522,
        num_layers=2,
        num_heads=2,
        hidden_dim=128,
        intermediate_dim=512,
        max_sequence_length=128,
    )
    return models.BertTextClassifier(backbone, num_classes=10, preprocessor=None)


SHAPES = {
    "cnn": ((16, 16, 3), 32),
    "mlp": ((784,), 128),
    "small": ((8,), 32),
    "bert": ((128,), 16),
    "resnet50": ((64, 64, 3), 32),
}


def data_of(case, batches):
    import numpy as np

    shape, batch_size = SHAPES[case]
    samples = batches * batch_size
    rng = np.random.default_rng(0)
    y = rng.integers(0, 10, samples)
    if case != "bert":
        return rng.normal(size=(samples, *shape)).astype("float32"), y
    ids = rng.integers(0, 30_522, (samples, *shape))
    zeros = np.zeros_like(ids)
    return {"token_ids": ids, "segment_ids": zeros, "padding_mask": zeros + 1}, y


def turn_callback(turns, way):
    """Return the callback that begins and ends one way's turns."""
    import keras

    class Turn(keras.callbacks.Callback):
        # Not async_safe: Keras waits for the step before it calls.
        def on_train_batch_begin(self, batch, logs=None):
            if batch % STEPS == 0:
                turns.wait(way)

        def on_train_batch_end(self, batch, logs=None):
            if batch % STEPS == STEPS - 1:
                turns.pass_on(way)

    return Turn()


def timed(callback):
    """Have the callback note how long its hooks take, in `milliseconds`."""
    callback.milliseconds = []

    def watch(name):
        original = getattr(callback, name)

        def hook(*arguments, **keywords):
            start = time.perf_counter()
            original(*arguments, **keywords)
            callback.milliseconds.append(1e3 * (time.perf_counter() - start))

        setattr(callback, name, hook)

    watch("on_epoch_begin")
    watch("on_epoch_end")
    return callback


def compiled_network(case, jit):
    import keras

    keras.utils.set_random_seed(1)
    model = network(case)
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile("adam", loss, jit_compile=jit)
    return model


def run_case(case, jit, first, turns_of_each):
    from kerasmem.callbacks import GradientMonitor, MemoryMonitor

    warnings.simplefilter("ignore")
    ways = {
        "bare": list,
        "bare again": list,
        "norm only": lambda: [GradientMonitor(per_variable=False)],
        "every=10": lambda: [GradientMonitor()],
        "every=1": lambda: [GradientMonitor(every=1)],
    }
    names = list(ways)
    names = names[first % len(names) :] + names[: first % len(names)]
    batch_size = SHAPES[case][1]
    x, y = data_of(case, STEPS * turns_of_each)
    turns = Turns(names)

    def fit(way):
        compiled_network(case, jit).fit(
            x,
            y,
            batch_size=batch_size,
            verbose=0,
            shuffle=False,
            callbacks=[*ways[way](), turn_callback(turns, way)],
        )

    threads = [threading.Thread(target=fit, args=[way]) for way in names]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    bare = statistics.median(turns.seconds["bare"][WARM_UP:])
    found = {"step_ms": 1e3 * bare / STEPS, "ratios": {}, "hooks": {}}
    for way in list(ways)[1:]:
        found["ratios"][way] = [
            ratio(figures[way], figures["bare"])
            for figures in (turns.seconds, turns.processor)
        ]
    # Epoch by epoch: beginning and end together.
    few = dict(zip("xy", data_of(case, 2), strict=True))
    for monitor in (MemoryMonitor(), GradientMonitor()):
        model = compiled_network(case, jit)
        callbacks = [timed(monitor)]
        model.fit(
            **few, batch_size=batch_size, epochs=20, verbose=0, callbacks=callbacks
        )
        hooks = zip(monitor.milliseconds[::2], monitor.milliseconds[1::2], strict=True)
        name = type(monitor).__name__
        found["hooks"][name] = statistics.median(map(sum, hooks))
    print(json.dumps(found))


def run_first_steps(case, jit, pairs):
    """Print the processor time of `fit` of one step, bare and with both monitors."""
    from kerasmem.callbacks import GradientMonitor, MemoryMonitor

    warnings.simplefilter("ignore")
    ways = {"bare": list, "both": lambda: [MemoryMonitor(), GradientMonitor()]}
    x, y = data_of(case, 1)
    seconds = {way: [] for way in ways}
    for pair in range(pairs + 1):
        for way in list(ways)[:: -1 if pair % 2 else 1]:
            model, callbacks = compiled_network(case, jit), ways[way]()
            model.optimizer.build(model.trainable_variables)
            start = sum(os.times()[:2])
            model.fit(x, y, batch_size=len(y), verbose=0, callbacks=callbacks)
            seconds[way].append(sum(os.times()[:2]) - start)
    print(json.dumps({way: figures[1:] for way, figures in seconds.items()}))


def tell_first_steps(case, backend, jit, found):
    pairs = list(zip(found["both"], found["bare"], strict=True))
    print(
        f"{backend} {case} jit={jit}: first step {spread(found['bare'])} s, both "
        f"monitors x{spread([both / bare for both, bare in pairs])}",
        flush=True,
    )


def ratio(figures, bare):
    ratios = [a / b for a, b in zip(figures, bare, strict=True)]
    return statistics.median(ratios[WARM_UP:])


def spread(figures):
    low, high = min(figures), max(figures)
    return f"{statistics.median(figures):.3f} ({low:.3f} to {high:.3f})"


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--backend", choices=BACKENDS)
    parser.add_argument("--case", choices=SHAPES)
    parser.add_argument("--jit", type=int)
    parser.add_argument("--processes", type=int, default=5)
    parser.add_argument("--turns", type=int, default=TURNS, help="of each way")
    parser.add_argument("--first", action="store_true", help="time of compilation")
    parser.add_argument("--pairs", type=int, default=3, help="with --first")
    parser.add_argument("--child", type=int, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.child is not None:
        run = run_first_steps if options.first else run_case
        counts = [options.child] if options.first else [options.child, options.turns]
        run(options.case, bool(options.jit), *counts)
        return
    for case, backend, jit in CASES:
        wanted = (options.case, options.backend, options.jit)
        pairs = zip(wanted, (case, backend, int(jit)), strict=True)
        if all(one in (None, value) for one, value in pairs):
            measure(options, case, backend, jit)


def measure(options, case, backend, jit):
    if options.first:
        found = child(case, backend, jit, options.pairs, first=True)
        tell_first_steps(case, backend, jit, found)
        return
    found = [
        child(case, backend, jit, i, options.turns) for i in range(options.processes)
    ]
    step = spread([each["step_ms"] for each in found])
    print(f"{backend} {case} jit={jit}: bare step {step} ms")
    for way in found[0]["ratios"]:
        clock, processor = (
            spread([each["ratios"][way][i] for each in found]) for i in (0, 1)
        )
        print(f"  {way:12} x{clock}, processor x{processor}")
    for name in found[0]["hooks"]:
        hooks = spread([each["hooks"][name] for each in found])
        print(f"  {name}: {hooks} ms an epoch", flush=True)


def child(case, backend, jit, number, turns=TURNS, *, first=False):
    command = [sys.executable, __file__, "--child", str(number), "--case", case]
    command += ["--jit", str(int(jit)), "--turns", str(turns)]
    command += ["--first"] if first else []
    environment = os.environ | {"KERAS_BACKEND": backend, "TF_CPP_MIN_LOG_LEVEL": "3"}
    run = subprocess.run(
        command, env=environment, stdout=subprocess.PIPE, text=True, check=True
    )
    return json.loads(run.stdout)


if __name__ == "__main__":
    main()
