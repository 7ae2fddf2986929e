"""Memory plans: peak and step time of trainings within a limit.

python -m tests.benchmarks.bench_memory_plan [--networks cnn resnet50 ...]
    [--shares 0.75 0.5 0.35 0.25] [--jit] [--xla] [--turns 3]

For each network and share, the limit is that share of the measured peak of the plain
model. The plan and each single strategy that is within the limit (rematerialization,
8 bits, micro-batches) train side by side: peaks by TensorFlow's allocator or the memory
events of torch's profiler (KERAS_BACKEND=torch), later steps only; times as medians of
interleaved steps, relative to the plain model. `--turns 0` omits times. `--xla` gives
peaks of XLA's plan instead (JAX), without times. A line of JSON per share.
"""

import argparse
import gc
import json
import os
import pathlib
import statistics
import subprocess
import sys
import tempfile
import time

os.environ.setdefault("KERAS_BACKEND", "tensorflow")
os.environ.setdefault("TF_ENABLE_ONEDNN_OPTS", "0")
SHARES = (0.75, 0.5, 0.35, 0.25)
STEPS = 4


def cnn():
    import keras
    from keras import layers

    model = keras.Sequential([keras.Input((28, 28, 1))])
    for filters in (32, 64, 128):
        for _ in range(2):
            model.add(layers.Conv2D(filters, 3, padding="same", activation="relu"))
        model.add(layers.MaxPooling2D())
    model.add(layers.Flatten())
    model.add(layers.Dense(10))
    return model


def resnet50():
    import keras

    return keras.applications.ResNet50(
        weights=None, input_shape=(64, 64, 3), classes=10, classifier_activation=None
    )


def unet():
    import keras
    from keras import layers

    def block(x, filters):
        for _ in range(2):
            x = layers.Conv2D(filters, 3, padding="same")(x)
            x = layers.ReLU()(layers.GroupNormalization(8)(x))
        return x

    x = inputs = keras.Input((64, 64, 3))
    kept = []
    for filters in (16, 32, 64):
        kept.append(block(x, filters))
        x = layers.MaxPooling2D()(kept[-1])
    x = block(x, 128)
    for filters, other in zip((64, 32, 16), reversed(kept), strict=True):
        x = layers.Conv2DTranspose(filters, 2, strides=2)(x)
        x = block(layers.Concatenate()([x, other]), filters)
    x = layers.Conv2D(1, 1)(x)
    return keras.Model(inputs, layers.Dense(10)(layers.Flatten()(x)))


def transformer(blocks=12):
    import keras
    from keras import layers

    x = inputs = keras.Input((128,), dtype="int32")
    x = layers.Embedding(1000, 128)(x)
    for _ in range(blocks):
        y = layers.LayerNormalization()(x)
        x = layers.Add()([x, layers.MultiHeadAttention(4, 32, dropout=0.1)(y, y)])
        y = layers.Dense(512, activation="gelu")(layers.LayerNormalization()(x))
        x = layers.Add()([x, layers.Dropout(0.1)(layers.Dense(128)(y))])
    x = layers.GlobalAveragePooling1D()(layers.LayerNormalization()(x))
    return keras.Model(inputs, layers.Dense(10)(x))


def hub(name):
    from tests.benchmarks.bench_kerashub_estimates import FAMILIES

    return FAMILIES[name](num_layers=6)


def mlp():
    import keras

    dense = [keras.layers.Dense(256, activation="relu") for _ in range(16)]
    return keras.Sequential([keras.Input((256,)), *dense, keras.layers.Dense(10)])


NETWORKS = {
    "cnn": (cnn, 256),
    "resnet50": (resnet50, 64),
    "unet": (unet, 32),
    "transformer": (transformer, 16),
    "vit": (lambda: hub("vit"), 32),
    "gemma": (lambda: hub("gemma"), 32),
    "bert": (lambda: hub("bert"), 32),
    "mlp": (mlp, 8192),
}


def made(name, jit):
    """Return a compiled network and its batch."""
    import keras
    import numpy as np

    make, size = NETWORKS[name]
    keras.utils.set_random_seed(1)
    model = make()
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile("adam", loss, jit_compile=jit)
    if name in ("vit", "gemma", "bert"):
        from tests.benchmarks.bench_kerashub_estimates import batch_of

        x, y = batch_of(model, size)
        return model, x, y
    random = np.random.default_rng(0)
    shape = (size, *model.inputs[0].shape[1:])
    if model.inputs[0].dtype == "int32":
        x = random.integers(0, 1000, shape).astype("int32")
    else:
        x = random.normal(size=shape).astype("float32")
    return model, x, random.integers(0, 10, size)


class Steps:
    """Runs some steps of `km.fit` and records their times."""

    def __init__(self, model, x, y):
        import keras
        import tensorflow as tf

        self.model = model
        self.data = tf.data.Dataset.from_tensors((x, y)).repeat(STEPS)
        self.seconds = []
        self.recorder = keras.callbacks.LambdaCallback(
            on_train_batch_begin=self.begin, on_train_batch_end=self.end
        )

    def begin(self, batch, logs=None):
        self.started = time.perf_counter()

    def end(self, batch, logs=None):
        float(logs["loss"])
        if batch > 1:
            self.seconds.append(time.perf_counter() - self.started)

    def run(self):
        """Return the median time of the later steps."""
        self.seconds.clear()
        self.fit()
        return statistics.median(self.seconds)

    def fit(self):
        """Run the steps."""
        import kerasmem as km

        km.fit(
            self.model,
            self.data,
            verbose=0,
            callbacks=[self.recorder],
            memory_limit="1TiB",
        )


def peak(job):
    """Return the peak of later steps of a plan; in a child."""
    import keras
    import tensorflow as tf

    from kerasmem.memory.plan import MemoryPlan

    model, x, y = made(job["network"], job["jit"])
    if job["plan"]:
        model = MemoryPlan.from_json(job["plan"]).apply(model)
    steps = Steps(model, x, y)
    steps.run()
    gc.collect()
    if keras.backend.backend() == "torch":
        return profiled_peak(steps)
    tf.config.experimental.reset_memory_stats("CPU:0")
    steps.run()
    return tf.config.experimental.get_memory_info("CPU:0")["peak"]


def profiled_peak(steps):
    """Return the peak of the later steps by the memory events of torch's profiler."""
    import keras
    from torch.profiler import ProfilerActivity, profile, record_function

    from kerasmem.graph.values import held_bytes, nbytes
    from kerasmem.memory.plan import plan_of

    # Not in the events: variables, slots, sums and the gradients of the first step,
    # and the batch, which torch takes from the dataset without a copy.
    x, y = next(iter(steps.data.as_numpy_iterator()))
    held = held_bytes(steps.model) + sum(a.nbytes for a in keras.tree.flatten((x, y)))
    plan = plan_of(steps.model)
    copies = 2 if plan is not None and plan.micro_batches > 1 else 1
    held += copies * sum(map(nbytes, steps.model.trainable_variables))

    def mark(batch, logs=None):
        if batch == 1:
            gc.collect()
            with record_function("later steps"):
                pass

    steps.recorder = keras.callbacks.LambdaCallback(on_train_batch_begin=mark)
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as profiled:
        steps.fit()
    with tempfile.TemporaryDirectory() as folder:
        path = pathlib.Path(folder, "trace.json")
        profiled.export_chrome_trace(str(path))
        events = json.loads(path.read_text())["traceEvents"]
    (begin,) = (e["ts"] for e in events if e.get("name") == "later steps")
    now = before = peak = 0
    memory = (e for e in events if e.get("name") == "[memory]")
    for event in sorted(memory, key=lambda e: e["ts"]):
        now += event["args"]["Bytes"]
        if event["ts"] < begin:
            before = now
        peak = max(peak, now - before)
    return held + peak


def peak_of(network, jit, plan=None):
    import keras

    from kerasmem.memory.estimate.measured import COUNTING_ALLOCATOR
    from kerasmem.processes import ON_THE_CPU, run_in_child

    return run_in_child(
        "tests.benchmarks.bench_memory_plan:peak",
        {"network": network, "jit": jit, "plan": plan and plan.to_json()},
        backend=keras.backend.backend(),
        environment={**ON_THE_CPU, **COUNTING_ALLOCATOR},
    )


def strategies(model, size, limit, lengths):
    """Return trainings within a limit by name, with predicted peak and time."""
    from kerasmem.errors import KerasMemError
    from kerasmem.memory.plan import plan_memory
    from kerasmem.memory.plan.search import CHOICES

    found = {}
    for name, choices in {"plan": CHOICES, **{c: (c,) for c in CHOICES}}.items():
        started = time.perf_counter()
        try:
            plan = plan_memory(model, size, limit, choices=choices, input_shape=lengths)
        except KerasMemError as error:
            found[name] = str(error)
            continue
        found[name] = plan, time.perf_counter() - started
    return found


def words(plan):
    ways = {piece.way for piece in plan.pieces} - {"kept"}
    parts = [f"{plan.micro_batches} parts"] * (plan.micro_batches > 1)
    return " and ".join([*parts, *sorted(ways)]) or "plain"


def measure(name, shares, jit, turns):
    """Print a line of JSON per share; run in a child."""
    model, x, y = made(name, jit)
    size, plain_peak = NETWORKS[name][1], peak_of(name, jit)
    lengths = {n: v.shape[1:] for n, v in x.items()} if isinstance(x, dict) else None
    for share in shares:
        limit = round(share * plain_peak)
        row = {"network": name, "share": share, "limit_mib": round(limit / 2**20, 1)}
        row["plain_mib"] = round(plain_peak / 2**20, 1)
        trained, known = {}, {}
        for way, found in strategies(model, size, limit, lengths).items():
            if isinstance(found, str):
                row[way] = {"refused": found[:180]}
                continue
            plan, seconds = found
            row[way] = {
                "is": words(plan),
                "planned_s": round(seconds, 2),
                "predicted_mib": round(plan.peak_bytes / 2**20, 1),
                "predicted_time": round(1 + plan.extra_time, 3),
            }
            key = plan.pieces, plan.micro_batches
            if key not in known:
                known[key] = way
                if turns:
                    trained[way] = Steps(plan.apply(model), x, y)
            row[way]["as"] = known[key]
            if way == "plan":
                real = peak_of(name, jit, plan)
                row[way]["peak_over_limit"] = round(real / limit - 1, 3)
        for way, ratio in times(Steps(model, x, y), trained, turns).items():
            row[way]["time"] = round(ratio, 3)
        print(json.dumps(row), flush=True)
        del trained
        gc.collect()


def times(plain, trained, turns):
    """Return the median time of each way in interleaved turns, relative to plain."""
    ratios = {way: [] for way in trained}
    order = [("", plain), *trained.items()]
    for _, one in order if turns else ():
        one.run()
    for turn in range(turns):
        seconds = {way: one.run() for way, one in order[:: 1 if turn % 2 else -1]}
        for way in trained:
            ratios[way].append(seconds[way] / seconds[""])
    return {way: statistics.median(found) for way, found in ratios.items()}


def planned_by_xla(name, shares):
    """Print XLA's plan of each share; no step runs."""
    from kerasmem.errors import KerasMemError
    from kerasmem.memory.estimate import estimate_memory
    from kerasmem.memory.plan import plan_memory

    model, x, _ = made(name, jit=True)
    size = NETWORKS[name][1]
    lengths = {n: v.shape[1:] for n, v in x.items()} if isinstance(x, dict) else None
    how = {"method": "traced", "input_shape": lengths}
    plain = estimate_memory(model, size, device="cpu", **how).peak_bytes
    for share in shares:
        limit = round(share * plain)
        row = {"network": name, "share": share, "limit_mib": limit / 2**20}
        started = time.perf_counter()
        try:
            plan = plan_memory(model, size, limit, **how)
            row |= {"is": words(plan), "peak_over_limit": plan.peak_bytes / limit - 1}
            row["predicted_time"] = 1 + plan.extra_time
        except KerasMemError as error:
            row["refused"] = str(error)[:240]
        row["planned_s"] = round(time.perf_counter() - started, 1)
        print(json.dumps(row), flush=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--networks", nargs="*", default=list(NETWORKS))
    parser.add_argument("--shares", nargs="*", type=float, default=SHARES)
    parser.add_argument("--jit", action="store_true")
    parser.add_argument("--xla", action="store_true")
    parser.add_argument("--turns", type=int, default=3)
    parser.add_argument("--child")
    arguments = parser.parse_args()
    if arguments.child and arguments.xla:
        planned_by_xla(arguments.child, arguments.shares)
    elif arguments.child:
        measure(arguments.child, arguments.shares, arguments.jit, arguments.turns)
    else:
        for name in arguments.networks:
            subprocess.run(
                [sys.executable, "-m", __spec__.name, *sys.argv[1:], "--child", name],
                check=False,
            )


if __name__ == "__main__":
    main()
