"""What rematerialisation saves and costs: peak and step time, by model and way.

Run by hand: `KERAS_BACKEND=tensorflow python tests/benchmarks/bench_rematerialize.py
[--models mlp resnet50 transformer] [--ways plain lowest ...] [--jit] [--turns 6]`.

Peaks: each way trains in a process of its own with the allocator of a GPU on the CPU,
which counts; the figure is the peak of later steps, variables and all. Times: plain and
lean take turns of some steps in one process; the figure is the median of the turns'
ratios. `full` and `activations` are the modes of `keras.RematScope`.
"""

import argparse
import gc
import json
import os
import statistics
import subprocess
import sys
import time

os.environ.setdefault("KERAS_BACKEND", "tensorflow")
COUNTING = {"TF_CPU_ALLOCATOR_USE_BFC": "1", "TF_ENABLE_ONEDNN_OPTS": "0"}
WAYS = ("plain", "lowest", "half", "sqrt", "full", "activations")


def mlp():
    import keras

    dense = [keras.layers.Dense(256, activation="relu") for _ in range(16)]
    return keras.Sequential([keras.Input((256,)), *dense, keras.layers.Dense(10)])


def resnet50():
    import keras

    return keras.applications.ResNet50(
        weights=None, input_shape=(64, 64, 3), classes=10, classifier_activation=None
    )


def transformer():
    import keras
    from keras import layers

    x = inputs = keras.Input((128,), dtype="int32")
    x = layers.Embedding(1000, 128)(x)
    for _ in range(12):
        y = layers.LayerNormalization()(x)
        x = layers.Add()([x, layers.MultiHeadAttention(4, 32, dropout=0.1)(y, y)])
        y = layers.Dense(512, activation="gelu")(layers.LayerNormalization()(x))
        x = layers.Add()([x, layers.Dropout(0.1)(layers.Dense(128)(y))])
    x = layers.GlobalAveragePooling1D()(layers.LayerNormalization()(x))
    return keras.Model(inputs, layers.Dense(10)(x))


MODELS = {
    "mlp": (mlp, 8192),
    "resnet50": (resnet50, 128),
    "transformer": (transformer, 16),
}


def build(name, way, jit, plain=None):
    """Return the model, compiled, and its batch."""
    import keras
    import numpy as np

    from kerasmem.memory.rematerialize import plan_of, rematerialize

    make, size = MODELS[name]
    keras.utils.set_random_seed(1)
    if way in ("full", "activations"):
        with keras.RematScope(mode=way):
            model = make()
    else:
        model = plain or make()
    if plain is None:
        loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
        model.compile("adam", loss, jit_compile=jit)
    if way in ("lowest", "half", "sqrt"):
        wishes = {}
        if way == "half":
            probe = plan_of(rematerialize(model, batch_size=size))
            wishes["memory_limit"] = (probe.peak_bytes + probe.plain_peak_bytes) // 2
        if way == "sqrt":
            wishes["segments"] = 4
        started = time.perf_counter()
        model = rematerialize(model, batch_size=size, **wishes)
        print(f"planned in {time.perf_counter() - started:.1f} s", file=sys.stderr)
        print(plan_of(model), file=sys.stderr)
    random = np.random.default_rng(0)
    shape = (size, *model.inputs[0].shape[1:])
    if model.inputs[0].dtype == "int32":
        x = random.integers(0, 1000, shape).astype("int32")
    else:
        x = random.normal(size=shape).astype("float32")
    return model, (x, random.integers(0, 10, size))


def steps(model, batch, count):
    import keras
    import tensorflow as tf

    data = tf.data.Dataset.from_tensors(tuple(map(tf.constant, batch))).repeat(count)
    loss = []
    note = keras.callbacks.LambdaCallback(
        on_train_batch_end=lambda _, logs: loss.append(logs["loss"])
    )
    model.fit(data, verbose=0, callbacks=[note])
    return loss


def peak(name, way, jit):
    """Print the peak of later steps as JSON; run in a child."""
    import tensorflow as tf

    model, batch = build(name, way, jit)
    gc.collect()
    steps(model, batch, 1)
    tf.config.experimental.reset_memory_stats("CPU:0")
    losses = steps(model, batch, 2)
    info = tf.config.experimental.get_memory_info("CPU:0")
    print(json.dumps({"peak_mib": info["peak"] / 2**20, "loss": losses[-1]}))


def measured_peak(name, way, jit):
    command = [sys.executable, __file__, "--peak", name, way] + ["--jit"] * jit
    done = subprocess.run(
        command,
        env={**os.environ, **COUNTING, "TF_CPP_MIN_LOG_LEVEL": "3"},
        capture_output=True,
        text=True,
        check=False,
    )
    for line in done.stderr.splitlines():
        if line.startswith(("planned", "'", "  ")) and "instead of" in line:
            print("   ", line)
    if done.returncode:
        errors = [x for x in done.stderr.splitlines() if "Error" in x]
        return {"error": errors[-1][:120] if errors else f"rc {done.returncode}"}
    return json.loads(done.stdout.splitlines()[-1])


def paired_time(name, ways, jit, turns, count):
    """Return the median ratio of step times to plain, of turns in one process."""
    plain, batch = build(name, "plain", jit)
    models = {"plain": plain}
    models |= {way: build(name, way, jit, plain)[0] for way in ways}
    for model in models.values():
        steps(model, batch, 2)
    ratios = {way: [] for way in ways}
    for turn in range(turns):
        seconds = {}
        for way in sorted(models, reverse=turn % 2 == 0):
            started = time.perf_counter()
            steps(models[way], batch, count)
            seconds[way] = time.perf_counter() - started
        for way in ways:
            ratios[way].append(seconds[way] / seconds["plain"])
    return {way: statistics.median(found) for way, found in ratios.items()}


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--models", nargs="*", default=list(MODELS))
    parser.add_argument("--ways", nargs="*", default=list(WAYS))
    parser.add_argument("--jit", action="store_true")
    parser.add_argument("--turns", type=int, default=6)
    parser.add_argument("--steps", type=int, default=3)
    parser.add_argument("--peak", nargs=2)
    arguments = parser.parse_args()
    if arguments.peak:
        peak(*arguments.peak, arguments.jit)
        return
    for name in arguments.models:
        print(f"{name}, batch {MODELS[name][1]}, jit {arguments.jit}")
        base = None
        for way in arguments.ways:
            found = measured_peak(name, way, arguments.jit)
            base = base or found.get("peak_mib")
            if "peak_mib" in found:
                found["against_plain"] = f"{found['peak_mib'] / base - 1:+.1%}"
            print(f"  {way}: {found}", flush=True)
        lean = [w for w in arguments.ways if w in ("lowest", "half", "sqrt")]
        if arguments.turns and lean:
            ratios = paired_time(
                name, lean, arguments.jit, arguments.turns, arguments.steps
            )
            print(
                "  step time:", {w: round(r, 3) for w, r in ratios.items()}, flush=True
            )


if __name__ == "__main__":
    main()
