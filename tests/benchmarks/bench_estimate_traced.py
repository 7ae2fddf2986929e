"""Traced, compiled and stepped estimates against what was measured.

python -m tests.benchmarks.bench_estimate_traced gpu METHOD FACTS [MODEL...]
    the cases of FACTS/peaks.jsonl (H200) of the backend in KERAS_BACKEND; METHOD is
    "traced", or "measured" (with TF_CPU_ALLOCATOR_USE_BFC=1 TF_ENABLE_ONEDNN_OPTS=0)
python -m tests.benchmarks.bench_estimate_traced cpu METHODS [MODEL...]
    methods, such as "analytic,measured", against get_memory_info on this machine
    (KERAS_BACKEND=tensorflow TF_ENABLE_ONEDNN_OPTS=0)
python -m tests.benchmarks.bench_estimate_traced xla
    compiled steps, traced, against get_memory_info on this machine
    (KERAS_BACKEND=tensorflow)
python -m tests.benchmarks.bench_estimate_traced batch [MODEL...]
    find_batch_size on four models with an artificial limit
"""

import importlib
import json
import statistics
import sys
import time
from collections import defaultdict
from pathlib import Path

import keras
import numpy as np
from keras import layers

from kerasmem.errors import ModelError
from kerasmem.memory.batch_size import find_batch_size
from kerasmem.memory.batch_size.trial import attempt
from kerasmem.memory.estimate import estimate_memory
from kerasmem.memory.estimate.inputs import run_once, zeros
from kerasmem.memory.estimate.measured import COUNTING_ALLOCATOR
from kerasmem.memory.estimate.request import Input, Request, request_of
from kerasmem.processes import ON_THE_CPU, run_in_child
from kerasmem.units import MIB

A = keras.applications
BATCHES = (8, 16, 32)
STEPS = 3
TRIES = 3


def question(model, shape, dtype, batch_size, **changes):
    settings = {
        "model": model,
        "inputs": (Input("x", (batch_size, *shape), dtype),),
        "batch_size": batch_size,
        "optimizer": model.optimizer,
        "dtype_policy": None,
        "jit_compile": False,
        "backend": keras.backend.backend(),
        "training": True,
        "device": "gpu",
    }
    return Request(**settings | changes)


def compiled(model, optimizer="adam"):
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(optimizer, loss, jit_compile=False)
    model.optimizer.build(model.trainable_variables)
    return model


def gpu(method, facts, *models):
    sys.path.insert(0, facts)
    cases = importlib.import_module("cases")
    here = importlib.import_module(f"kerasmem.memory.estimate.{method}")
    rows = map(json.loads, Path(facts, "peaks.jsonl").read_text().splitlines())
    rows = [row for row in rows if row["backend"] == keras.backend.backend()]
    errors, inside = {True: [], False: []}, []
    for row in sorted(rows, key=lambda row: (row["jit"], row["weight_bytes"])):
        if models and row["model"] not in models:
            continue
        keras.backend.clear_session()
        keras.config.set_dtype_policy(row["dtype"])
        begin = time.perf_counter()
        model, shape, kind = cases.build(row["model"])
        compiled(model, row["opt"])
        dtype = "float32" if kind == "float" else "int32"
        asked = question(model, shape, dtype, row["batch"], jit_compile=row["jit"])
        found = here.estimate_in_process(asked)
        true = row["steady"]["peak"]
        error = found.peak_bytes / true - 1
        errors[row["jit"]].append(abs(error))
        inside.append(found.low_bytes <= true <= found.high_bytes)
        print(
            f"{row['model']:12} {row['batch']:3} {row['dtype'][:8]:8} {row['opt']:4} "
            f"jit={row['jit']!s:5} {true / MIB:8.0f} {found.peak_bytes / MIB:8.0f} "
            f"{error:+7.1%} [{found.low_bytes / MIB:.0f}, {found.high_bytes / MIB:.0f}]"
            f" {time.perf_counter() - begin:.0f} s",
            flush=True,
        )
    for jit, found in errors.items():
        if found:
            print(f"jit={jit}: {summary(found)}")
    print(f"inside the interval: {statistics.mean(inside):.0%} of {len(inside)}")


def shape_of(model):
    return model.inputs[0].shape[1:], model.inputs[0].dtype


def summary(errors):
    within = statistics.mean(error <= 0.12 for error in errors)
    return (
        f"n={len(errors)} median {statistics.median(errors):.1%}, nine of ten within "
        f"{np.quantile(errors, 0.9):.1%}, worst {max(errors):.1%}, "
        f"{within:.0%} within 12 %"
    )


def dense():
    inputs = x = layers.Input((784,))
    for _ in range(3):
        x = layers.Dense(1024, activation="relu")(x)
    return keras.Model(inputs, layers.Dense(10)(x))


def convolutions():
    inputs = x = layers.Input((64, 64, 3))
    for filters in (32, 32, 64, 64):
        x = layers.Conv2D(filters, 3, padding="same", activation="relu")(x)
        x = layers.MaxPooling2D()(x)
    return keras.Model(inputs, layers.Dense(10)(layers.Flatten()(x)))


def recurrent(cell):
    inputs = layers.Input((64,), dtype="int32")
    x = layers.Embedding(5000, 128)(inputs)
    x = cell(128)(cell(128, return_sequences=True)(x))
    return keras.Model(inputs, layers.Dense(10)(x))


def attention():
    inputs = layers.Input((128,), dtype="int32")
    x = layers.Embedding(5000, 128)(inputs)
    for _ in range(3):
        x = layers.LayerNormalization()(x + layers.MultiHeadAttention(4, 32)(x, x))
        x = x + layers.Dense(128)(layers.Dense(512, activation="gelu")(x))
    return keras.Model(inputs, layers.Dense(10)(layers.GlobalAveragePooling1D()(x)))


def application(make):
    return make(
        weights=None, classes=10, classifier_activation=None, input_shape=(96, 96, 3)
    )


MODELS = {
    "dense": dense,
    "convolutions": convolutions,
    "lstm": lambda: recurrent(layers.LSTM),
    "gru": lambda: recurrent(layers.GRU),
    "attention": attention,
    "mobilenetv2": lambda: application(A.MobileNetV2),
    "mobilenetv3": lambda: application(A.MobileNetV3Small),
    "resnet50": lambda: application(A.ResNet50),
    "densenet121": lambda: application(A.DenseNet121),
    "efficientnetb0": lambda: application(A.EfficientNetB0),
    "nasnetmobile": lambda: application(A.NASNetMobile),
    "xception": lambda: application(A.Xception),
}


LIMITS = {
    "dense": "160MiB",
    "convolutions": "128MiB",
    "attention": "256MiB",
    "mobilenetv3": "384MiB",
}


def measure(job):
    """Return the peak of later steps by the allocator; runs in a child."""
    import tensorflow as tf

    request = request_of(job)
    batch = zeros(request)
    run_once(request, batch)
    tf.config.experimental.reset_memory_stats("CPU:0")
    for _ in range(STEPS):
        run_once(request, batch)
    return {"peak": tf.config.experimental.get_memory_info("CPU:0")["peak"]}


def cpu(methods, *names):
    against_allocator(names or MODELS, methods.split(","), jit=False)


def xla():
    against_allocator(LIMITS, ("analytic", "traced"), jit=True)


def against_allocator(names, methods, *, jit):
    errors, inside = defaultdict(list), defaultdict(list)
    for name in names:
        model = compiled(MODELS[name]())
        for size in BATCHES:
            true = measured(model, size, jit=jit)
            line = f"{name:14} {size:3} {true / MIB:8.1f}"
            for method in methods:
                found = estimated(model, size, method, jit=jit)
                if found is None:
                    line += f"  {method} cannot"
                    continue
                error = found.peak_bytes / true - 1
                errors[method].append(abs(error))
                inside[method].append(found.low_bytes <= true <= found.high_bytes)
                line += f"  {method} {found.peak_bytes / MIB:8.1f} {error:+6.1%}"
            print(line, flush=True)
    for method, found in errors.items():
        share = statistics.mean(inside[method])
        print(f"{method}: {summary(found)}, inside the interval {share:.0%}")


def measured(model, size, *, jit):
    asked = question(model, *shape_of(model), size, device="cpu", jit_compile=jit)
    kept = {**ON_THE_CPU, **COUNTING_ALLOCATOR}
    task = "tests.benchmarks.bench_estimate_traced:measure"
    return run_in_child(task, asked.job(), backend="tensorflow", environment=kept)[
        "peak"
    ]


def estimated(model, size, method, *, jit):
    options = {"method": method, "device": "cpu", "jit_compile": jit}
    try:
        return estimate_memory(model, size, **options)
    except ModelError:  # a loop, of which a trace says so
        return None


def batch(*names):
    for name in names or LIMITS:
        model, limit = compiled(MODELS[name]()), LIMITS[name]
        begin = time.perf_counter()
        found = find_batch_size(model, limit)
        seconds = time.perf_counter() - begin
        more = int(1.15 * found) + 1
        bound = found.limit_bytes

        def runs(size, model=model, bound=bound):
            asked = question(model, *shape_of(model), size, device="cpu")
            return attempt(asked, bound, bound).fits

        # The allocator's limit is soft: what does not fit may get through once.
        again = [runs(int(found)) for _ in range(TRIES)]
        over = [runs(more) for _ in range(TRIES)]
        tried = [(trial.batch_size, trial.fits) for trial in found.trials]
        print(
            f"{name}: {limit} -> {int(found)} in {seconds:.0f} s, trials {tried}; "
            f"again {again}, {more}: {over}",
            flush=True,
        )


if __name__ == "__main__":
    {"gpu": gpu, "cpu": cpu, "xla": xla, "batch": batch}[sys.argv[1]](*sys.argv[2:])
