"""What the monitors cost: time against the bare `fit` of the same model.

Run by hand, about 3 minutes a backend on 2 cores:

    python tests/benchmarks/bench_monitors.py [--backend torch] [--rounds 20]

Every case runs in a process of its own. In it one `fit` per way of watching, and two
of none, run in threads that take turns epoch by epoch: what disturbs the machine
disturbs them all. A ratio is the median over the rounds of an epoch's time over that of
the bare epoch beside it, once of the clock, once of the processor time. What
"bare again" is off 1 is the noise.
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
    for name in ("cnn", "mlp")
    for jit in {"tensorflow": (False, True), "jax": (True,), "torch": (False,)}[backend]
]
WARM_UP = 2


class Turns:
    """Lets the threads of several fits run one epoch each, in turn."""

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


SHAPES = {"cnn": ((16, 16, 3), 32, 20), "mlp": ((784,), 128, 40)}


def borders(turns):
    """Return the callbacks that begin and end one way's turn."""
    import keras

    class Begin(keras.callbacks.Callback):
        async_safe = True

        def __init__(self, way):
            super().__init__()
            self.way = way

        def on_epoch_begin(self, epoch, logs=None):
            turns.wait(self.way)

    class End(Begin):
        def on_epoch_begin(self, epoch, logs=None):
            pass

        def on_epoch_end(self, epoch, logs=None):
            turns.pass_on(self.way)

    return Begin, End


def run_case(name, jit, rounds):
    import keras
    import numpy as np

    from kerasmem.callbacks import GradientMonitor, MemoryMonitor

    warnings.simplefilter("ignore")
    ways = {
        "bare": list,
        "bare again": list,
        "memory": lambda: [MemoryMonitor()],
        "norm only": lambda: [GradientMonitor(per_variable=False)],
        "every=10": lambda: [GradientMonitor()],
        "every=1": lambda: [GradientMonitor(every=1)],
    }
    shape, batch_size, steps = SHAPES[name]
    rng = np.random.default_rng(0)
    x = rng.normal(size=(batch_size * steps, *shape)).astype("float32")
    y = rng.integers(0, 10, batch_size * steps)
    turns = Turns(list(ways))

    begin, end = borders(turns)

    def fit(way):
        keras.utils.set_random_seed(1)
        model = network(name)
        loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
        model.compile("adam", loss, jit_compile=jit)
        model.fit(
            x,
            y,
            batch_size=batch_size,
            epochs=rounds + WARM_UP,
            verbose=0,
            shuffle=False,
            callbacks=[begin(way), *ways[way](), end(way)],
        )

    threads = [threading.Thread(target=fit, args=[way]) for way in ways]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    bare = statistics.median(turns.seconds["bare"][WARM_UP:])
    found = {"step_ms": 1e3 * bare / steps, "epoch_ms": 1e3 * bare}
    for way in list(ways)[1:]:
        found[way] = [
            ratio(figures[way], figures["bare"])
            for figures in (turns.seconds, turns.processor)
        ]
        differences = [
            a - b
            for a, b in zip(turns.seconds[way], turns.seconds["bare"], strict=True)
        ]
        found[way].append(1e3 * statistics.median(differences[WARM_UP:]))
    return found


def ratio(figures, bare):
    ratios = [a / b for a, b in zip(figures, bare, strict=True)]
    return statistics.median(ratios[WARM_UP:])


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--backend", choices=BACKENDS)
    parser.add_argument("--case", choices=SHAPES)
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--child", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("--jit", type=int)
    options = parser.parse_args()
    if options.child:
        print(json.dumps(run_case(options.case, bool(options.jit), options.rounds)))
        return
    for name, backend, jit in CASES:
        if options.backend not in (None, backend):
            continue
        if options.case not in (None, name):
            continue
        if options.jit not in (None, int(jit)):
            continue
        command = [sys.executable, __file__, "--child", "--case", name]
        command += ["--jit", str(int(jit)), "--rounds", str(options.rounds)]
        environment = os.environ | {
            "KERAS_BACKEND": backend,
            "TF_CPP_MIN_LOG_LEVEL": "3",
        }
        run = subprocess.run(
            command, env=environment, stdout=subprocess.PIPE, text=True, check=True
        )
        found = json.loads(run.stdout)
        print(f"{backend} {name} jit={jit}: bare step {found['step_ms']:.1f} ms")
        for way, figures in found.items():
            if isinstance(figures, list):
                clock, cpu, more = figures
                print(
                    f"  {way:12} x{clock:.3f} (processor x{cpu:.3f}), "
                    f"{more:+.1f} ms an epoch",
                    flush=True,
                )


if __name__ == "__main__":
    main()
