"""A step of LoRA on a Llama of 25 million weights: float, codes, rematerialized.

    python -m tests.benchmarks.bench_qlora [--jit]

Prints MiB at rest, MiB at the peak of a third step, and the median of later steps in
seconds, by TensorFlow's own allocator, each in a process of its own.
"""

import argparse
import gc
import os
import statistics
import time

os.environ["KERAS_BACKEND"] = "tensorflow"
os.environ["TF_ENABLE_ONEDNN_OPTS"] = "0"

import keras
import keras_hub
import numpy as np

import kerasmem as km
from kerasmem.memory.estimate.measured import COUNTING_ALLOCATOR
from kerasmem.processes import ON_THE_CPU, run_in_child
from kerasmem.units import MIB

BATCH, LENGTH, TURNS = 2, 64, 7
CASES = [("float", False), ("int8", False), ("int4", False), ("int4", True)]


def task(scheme):
    keras.utils.set_random_seed(1)
    backbone = keras_hub.models.Llama3Backbone(
        vocabulary_size=2000,
        num_layers=8,
        num_query_heads=8,
        num_key_value_heads=2,
        hidden_dim=512,
        intermediate_dim=1408,
    )
    model = keras_hub.models.Llama3CausalLM(backbone, preprocessor=None)
    if scheme != "float":
        model = km.compress(model, km.Quantize(scheme), verbose=0).model
    model.backbone.enable_lora(8)
    return model


def measure(job):
    """Return the figures of one case; runs in a child."""
    import tensorflow as tf

    model = task(job["scheme"])
    names = ("token_ids", "padding_mask")
    if job["lean"]:
        shapes = dict.fromkeys(names, (LENGTH,))
        model = km.rematerialize(model, batch_size=BATCH, input_shape=shapes)
    gc.collect()
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    settings = {"metrics": [], "weighted_metrics": [], "jit_compile": job["jit"]}
    model.compile(km.optimizers.Adam8bit(), loss, **settings)
    ones = np.ones((BATCH, LENGTH), "int32")
    x = dict.fromkeys(names, ones)

    def step():
        begin = time.perf_counter()
        model.train_on_batch(x, ones)
        return time.perf_counter() - begin

    step(), step()
    rest = tf.config.experimental.get_memory_info("CPU:0")["current"]
    tf.config.experimental.reset_memory_stats("CPU:0")
    step()
    peak = tf.config.experimental.get_memory_info("CPU:0")["peak"]
    seconds = statistics.median(step() for _ in range(TURNS))
    return {"rest": rest / MIB, "peak": peak / MIB, "seconds": seconds}


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--jit", action="store_true")
    jit = parser.parse_args().jit
    for scheme, lean in CASES:
        found = run_in_child(
            "tests.benchmarks.bench_qlora:measure",
            {"scheme": scheme, "lean": lean, "jit": jit},
            backend="tensorflow",
            environment={**ON_THE_CPU, **COUNTING_ALLOCATOR},
        )
        name = f"{scheme}{', rematerialized' if lean else ''}"
        figures = "rest {rest:.1f}, peak {peak:.1f} MiB, {seconds:.3f} s"
        print(f"{name:24}{figures.format(**found)}", flush=True)


if __name__ == "__main__":
    main()
